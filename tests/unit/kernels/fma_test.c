/* fma_exact and the fused steps of cpu_vec.h: the bits of the C library's fmaf, which IEEE 754 fixes. */
#pragma GCC diagnostic ignored "-Wpsabi" // 64-byte vectors only pass through inlined functions
#include "common/num.h"
#include "kernels/cpu_vec.h"
#include "tests/lib/test.h"

#include <math.h>

struct triple {
    float a[LANES], b[LANES], c[LANES];
};

static float of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

// NaNs are all alike.
static bool same(float x, float y) {
    return bits_of(x) == bits_of(y) || (isnan(x) && isnan(y));
}

static void check(const struct triple *t) {
    float exact[LANES], fused[LANES];
    fma_exact_many(t->a, t->b, t->c, exact, LANES);
    vf_store(fused, vf_fma(vf_load(t->a), vf_load(t->b), vf_load(t->c)));
    for (int i = 0; i < LANES; i++) {
        float want = fmaf(t->a[i], t->b[i], t->c[i]);
        if (!same(exact[i], want) || !same(fused[i], want))
            test_fail(__FILE__, __LINE__,
                      "%a * %a + %a: found %a (fma_exact), %a (vf_fma), wanted %a", (double)t->a[i],
                      (double)t->b[i], (double)t->c[i], (double)exact[i], (double)fused[i],
                      (double)want);
    }
}

TEST(special_values_in_all_combinations) {
    static const float values[] = {0.0f,
                                   1.0f,
                                   1.5f,
                                   3.0f,
                                   0x1p-149f,
                                   0x3p-149f,
                                   0x1p-127f,
                                   0x1.fffffep-127f,
                                   0x1p-126f,
                                   0x1p-125f,
                                   0x1.000002p-76,
                                   0x1.fffffep-75f,
                                   0x1.000002p0,
                                   0x1p24f,
                                   0x1.fffffep23f,
                                   0x1.fffffep-1f,
                                   0x1p-24f,
                                   0x1p-25f,
                                   0x1.fffffep127,
                                   0x1p127f,
                                   0x1p64f,
                                   INFINITY,
                                   NAN,
                                   0x1.555556p-2f};
    enum { COUNT = sizeof values / sizeof *values, ALL = 2 * COUNT };
    struct triple t;
    uint32_t n = 0;
    for (uint32_t i = 0; i < ALL * ALL * ALL; i++) {
        uint32_t a = i % ALL, b = i / ALL % ALL, c = i / ALL / ALL;
        t.a[n] = a < COUNT ? values[a] : -values[a - COUNT];
        t.b[n] = b < COUNT ? values[b] : -values[b - COUNT];
        t.c[n] = c < COUNT ? values[c] : -values[c - COUNT];
        if (++n < LANES) continue;
        check(&t);
        n = 0;
    }
    CHECK_EQ(n, 0);
}

// Any bits: most sums are far from one another, many results infinite or nothing.
TEST(random_bits) {
    struct triple t;
    uint64_t x = 1;
    for (uint32_t i = 0; i < 200000; i++) {
        for (int j = 0; j < LANES; j++) {
            uint64_t r = mix_u64(x++), q = mix_u64(x++);
            t.a[j] = of_bits((uint32_t)r);
            t.b[j] = of_bits((uint32_t)(r >> 32));
            t.c[j] = of_bits((uint32_t)q);
        }
        check(&t);
    }
}

// A product next to half of the last place of c: nearly a tie, or one. Rounding to double first would make a tie of it.
TEST(sums_that_lie_next_to_a_tie) {
    struct triple t;
    uint64_t x = 77;
    for (uint32_t i = 0; i < 200000; i++) {
        for (int j = 0; j < LANES; j++) {
            uint64_t r = mix_u64(x++), q = mix_u64(x++);
            uint32_t exponent = i % 2 ? (uint32_t)(q % 200) : (uint32_t)(q % 4); // 0: subnormal
            int half = (int)(exponent ? exponent : 1) - 127 - 23 - 1, part = half / 2;
            int more = (int)(r % 64), less = q >> 32 & 1 ? more : (int)(r >> 8 & 63);
            t.a[j] = ldexpf(1 + (float)more * 0x1p-23f, part);
            t.b[j] = ldexpf(1 - (float)less * 0x1p-23f, half - part) * (r >> 62 & 1 ? 1 : -1);
            t.c[j] = of_bits((uint32_t)(r >> 63) << 31 | exponent << 23 |
                             (uint32_t)(r >> 32 & 0x7fffff));
        }
        check(&t);
    }
}
