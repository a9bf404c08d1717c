/* math_f64: accuracy against the C library's long double, the edges, and the same bits from every build. */
#include "common/num.h"
#include "kernels/math_f64.h"
#include "tests/lib/test.h"

#include <math.h>
#include <string.h>

static double unit(uint64_t i) { // in [0, 1)
    return (double)(mix_u64(i + 1) >> 11) * 0x1p-53;
}

static uint64_t bits_of(double x) {
    uint64_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

// Distance of y from the true value t, in units of the last place of t.
static double ulps(double y, long double t) {
    int e;
    frexp((double)t, &e);
    return (double)(fabsl(y - t) / ldexpl(1, e - 53));
}

TEST(exp_is_within_a_unit_of_the_last_place) {
    double worst = 0;
    for (uint64_t i = 0; i < 1000000; i++) {
        double x = i % 2 ? unit(i) * 1416 - 707 : (unit(i) * 2 - 1) * 2;
        double d = ulps(math_f64_exp(x), expl(x));
        if (d > worst) worst = d;
    }
    CHECK(worst < 0.7);
}

TEST(log_is_within_a_unit_of_the_last_place) {
    double worst = 0;
    for (uint64_t i = 1; i < 1000000; i++) {
        double x = i % 3 == 0   ? unit(i)
                   : i % 3 == 1 ? 0.5 + unit(i)
                                : ldexp(1 + unit(i), (int)(i % 2000) - 1000);
        if (x == 0 || x == 1) continue;
        double d = ulps(math_f64_log(x), logl(x));
        if (d > worst) worst = d;
    }
    CHECK(worst < 0.7);
}

TEST(log_near_one_keeps_its_digits) {
    for (int k = 1; k <= 52; k++)
        for (int sign = -1; sign <= 1; sign += 2) {
            double x = 1 + sign * ldexp(1, -k);
            if (x == 0) continue;
            CHECK(ulps(math_f64_log(x), logl(x)) < 0.7);
        }
    CHECK_EQ_U64(bits_of(math_f64_log(1)), 0);
}

TEST(edges_are_what_ieee_says) {
    CHECK_EQ_U64(bits_of(math_f64_exp(0)), bits_of(1));
    CHECK_EQ_U64(bits_of(math_f64_exp(-0.0)), bits_of(1));
    CHECK(math_f64_exp(INFINITY) == INFINITY);
    CHECK(math_f64_exp(710) == INFINITY);
    CHECK(isfinite(math_f64_exp(709.78)));
    CHECK(math_f64_exp(-INFINITY) == 0);
    CHECK(math_f64_exp(-746) == 0);
    CHECK(math_f64_exp(-745) == 0x1p-1074);
    CHECK(isnan(math_f64_exp(NAN)));
    CHECK(math_f64_log(0) == -INFINITY);
    CHECK(math_f64_log(-0.0) == -INFINITY);
    CHECK(math_f64_log(INFINITY) == INFINITY);
    CHECK(isnan(math_f64_log(-1)));
    CHECK(isnan(math_f64_log(-INFINITY)));
    CHECK(isnan(math_f64_log(NAN)));
    CHECK_NEAR(math_f64_log(0x1p-1074), -744.44007192138122, 1e-12);
}

/* A compiler that fuses, reorders or calls the C library changes some of these bits: tokens would then depend on the
 * build's flags. */
TEST(a_million_results_have_the_bits_of_every_other_build) {
    uint64_t h = 0;
    for (uint64_t i = 0; i < 500000; i++) {
        h = mix_u64(h ^ bits_of(math_f64_exp(unit(i) * 1480 - 760)));
        h = mix_u64(h ^ bits_of(math_f64_log(unit(i) * (double)(i + 1))));
    }
    CHECK_EQ_U64(h, 0xfa5ba4707106b88);
}
