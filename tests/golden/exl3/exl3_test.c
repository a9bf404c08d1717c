/* The EXL3 decoder against the vectors of the format (README.md) and, for every width, against its definition bit by bit. The
 * same source is built for each instruction set. */
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/sha256.h"
#include "kernels/cpu_pool.h"
#include "kernels/linear/exl3_decode.h"
#include "kernels/linear/exl3_signs.h"
#include "kernels/linear/hadamard.h"
#include "kernels/linear/linear.h"
#include "kernels/ops.h"
#include "tests/lib/half.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 256, ROWS = 3, WIDTHS = 8, CODEBOOKS = 3 };
static const char *const codebook_names[CODEBOOKS] = {"3inst", "mcg",
                                                      "mul1"}; // as the enum counts them

// Not on a machine that lacks what this build was compiled for.
static bool runs_here(void) {
#if defined(__AVX512F__)
    const char *need = "avx512";
#elif defined(__AVX2__)
    const char *need = "avx2";
#else
    const char *need = "base";
#endif
    for (const char *const *v = ops_cpu_variants(); *v; v++)
        if (!strcmp(*v, need)) return true;
    test_note("this machine has no %s", need);
    return false;
}

static void *read_vectors(const char *name, size_t bytes) {
    char path[600];
    snprintf(path, sizeof path, "%s/tests/golden/exl3/%s", test_source_dir(), name);
    FILE *f = fopen(path, "rb");
    CHECK(f != NULL);
    void *p = mem_alloc(bytes + 1);
    CHECK_EQ(fread(p, 1, bytes + 1, f), bytes);
    fclose(f);
    return p;
}

// The line of hashes.txt that begins with `what` ends with the hash of p.
static void check_hash(const char *what, const void *p, size_t bytes) {
    char path[600], line[400], hex[SHA256_HEX_BYTES];
    uint8_t digest[SHA256_BYTES];
    struct sha256 *h = sha256_new();
    sha256_add(h, p, bytes);
    sha256_digest(h, digest);
    sha256_free(h);
    sha256_hex(digest, hex);
    snprintf(path, sizeof path, "%s/tests/golden/exl3/hashes.txt", test_source_dir());
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) found = !strncmp(line, what, strlen(what));
    fclose(f);
    CHECK(found);
    line[strcspn(line, "\n")] = '\0';
    if (strcmp(line + strlen(line) - strlen(hex), hex))
        test_fail(__FILE__, __LINE__, "%s: found %s, wanted %s", what, hex, line);
}

static vf value_of(vu state, enum exl3_codebook c) {
    switch (c) {
    case EXL3_3INST: return exl3_value(state, EXL3_3INST);
    case EXL3_MCG: return exl3_value(state, EXL3_MCG);
    default: return exl3_value(state, EXL3_MUL1);
    }
}

static void decode(const void *tile, uint32_t half_bits, enum exl3_codebook c, float *ret,
                   uint64_t stride) {
    switch (c) {
    case EXL3_3INST: exl3_tile(tile, half_bits, EXL3_3INST, ret, stride); break;
    case EXL3_MCG: exl3_tile(tile, half_bits, EXL3_MCG, ret, stride); break;
    case EXL3_MUL1: exl3_tile(tile, half_bits, EXL3_MUL1, ret, stride); break;
    }
}

// All 65536 values of a codebook.
static float *codebook(enum exl3_codebook c) {
    float *values = mem_alloc(65536 * sizeof *values);
    for (uint32_t s = 0; s < 65536; s += LANES) {
        uint32_t t[LANES];
        for (uint32_t i = 0; i < LANES; i++) t[i] = s + i;
        vf_store(values + s, value_of(vu_load(t), c));
    }
    return values;
}

TEST(every_state_has_the_value_of_the_format) {
    static uint16_t halves[65536];
    if (!runs_here()) return;
    for (int c = 0; c < CODEBOOKS; c++) {
        char what[40];
        float *values = codebook((enum exl3_codebook)c);
        for (uint32_t s = 0; s < 65536; s++) {
            halves[s] = half_of(values[s]);
            CHECK(half_to(halves[s]) == values[s]);
        }
        snprintf(what, sizeof what, "codebook %s ", codebook_names[c]);
        check_hash(what, halves, sizeof halves);
        free(values);
    }
}

// splitmix64, four 16-bit words a draw.
static uint16_t *random_words(uint64_t seed, size_t count) {
    uint16_t *w = mem_alloc((count + 3) * sizeof *w);
    for (size_t i = 0; i < count; i += 4) {
        seed += 0x9e3779b97f4a7c15u;
        uint64_t z = seed;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        for (size_t k = 0; k < 4; k++) w[i + k] = (uint16_t)(z >> 16 * k);
    }
    return w;
}

TEST(every_vector_of_the_format_decodes_to_its_hash) {
    static float columns[SIZE][SIZE]; // [output][input]
    static uint16_t halves[SIZE][SIZE];
    if (!runs_here()) return;
    for (uint32_t bits = 1; bits <= WIDTHS; bits++) {
        uint16_t *trellis = random_words(1000 + bits, SIZE * SIZE * bits / 16);
        for (int c = 0; c < CODEBOOKS; c++) {
            char what[40];
            for (uint32_t t = 0; t < SIZE / 16 * SIZE / 16; t++)
                decode(trellis + t * 16 * bits, 2 * bits, (enum exl3_codebook)c,
                       &columns[t % (SIZE / 16) * 16][t / (SIZE / 16) * 16], SIZE);
            for (uint32_t k = 0; k < SIZE; k++)
                for (uint32_t n = 0; n < SIZE; n++) halves[k][n] = half_of(columns[n][k]);
            snprintf(what, sizeof what, "decoded %u %s ", bits, codebook_names[c]);
            check_hash(what, halves, sizeof halves);
        }
        free(trellis);
    }
}

// Bit `at` of the ring, counted from its start.
static uint32_t ring_bit(const uint16_t *tile, uint32_t half_bits, int64_t at) {
    uint32_t b = (uint32_t)((at + 128 * half_bits) % (128 * half_bits));
    uint32_t word = tile[b / 32 * 2] | (uint32_t)tile[b / 32 * 2 + 1] << 16;
    return word >> (31 - b % 32) & 1;
}

/* The half widths have no published vectors: their symbols take floor and ceiling of the width in turn. Checked for all
 * widths against that definition, one bit at a time; the 24 cases above tie the definition to the format. */
TEST(tiles_of_every_width_follow_the_definition_bit_by_bit) {
    if (!runs_here()) return;
    for (uint32_t half_bits = EXL3_HALF_BITS_MIN; half_bits <= EXL3_HALF_BITS_MAX; half_bits++)
        for (int c = 0; c < CODEBOOKS; c++) {
            uint16_t *tiles = random_words(half_bits * 7 + (uint32_t)c, 3 * 8 * half_bits);
            float *values = codebook((enum exl3_codebook)c), got[16 * 24];
            for (uint32_t t = 0; t < 3; t++) {
                const uint16_t *tile = tiles + t * 8 * half_bits;
                uint32_t end = 0;
                decode(tile, half_bits, (enum exl3_codebook)c, got, 24);
                for (uint32_t i = 0; i < 256; i++) {
                    uint32_t state = 0, lane = i >> 3, j = i & 7;
                    end += half_bits / 2 + (half_bits % 2 && i % 2);
                    for (int b = 16; b > 0; b--)
                        state = state << 1 | ring_bit(tile, half_bits, (int64_t)end - b);
                    uint32_t row = 2 * (lane & 3) + (j & 1) + 8 * (j >> 1 & 1);
                    uint32_t col = (lane >> 2) + 8 * (j >> 2);
                    if (got[col * 24 + row] != values[state])
                        test_fail(__FILE__, __LINE__, "width %g, symbol %u: found %g, wanted %g",
                                  half_bits / 2.0, i, (double)got[col * 24 + row],
                                  (double)values[state]);
                }
            }
            free(values);
            free(tiles);
        }
}

static void rotate(float *x) {
    vf v[HADAMARD_VECTORS];
    for (int i = 0; i < HADAMARD_VECTORS; i++) v[i] = vf_load(x + i * LANES);
    hadamard_128(v);
    for (int i = 0; i < HADAMARD_VECTORS; i++) vf_store(x + i * LANES, v[i]);
}

TEST(the_rotation_has_the_bits_of_the_vectors_and_undoes_itself) {
    if (!runs_here()) return;
    enum { N = WIDTHS * ROWS * SIZE };
    uint16_t *x = read_vectors("x.f16", N * 2), *suh = read_vectors("suh.f16", WIDTHS * SIZE * 2);
    uint16_t *xh = read_vectors("xh.f16", N * 2);
    for (uint32_t i = 0; i < N; i += HADAMARD_CHANNELS) {
        float v[HADAMARD_CHANNELS], before[HADAMARD_CHANNELS];
        for (uint32_t k = 0; k < HADAMARD_CHANNELS; k++) {
            uint16_t s = suh[i / (ROWS * SIZE) * SIZE + (i + k) % SIZE];
            before[k] = v[k] = half_to(half_of(half_to(x[i + k]) * half_to(s)));
        }
        rotate(v);
        for (uint32_t k = 0; k < HADAMARD_CHANNELS; k++) CHECK_EQ(half_of(v[k]), xh[i + k]);
        rotate(v);
        for (uint32_t k = 0; k < HADAMARD_CHANNELS; k++) CHECK(fabsf(v[k] - before[k]) < 1e-6f);
    }
    free(x);
    free(suh);
    free(xh);
}

TEST(packed_signs_are_those_of_the_vectors) {
    static const uint16_t packed[16] = {0xf081, 0x7c1f, 0xcbe0, 0x6258, 0x9e54, 0x3a96,
                                        0xa488, 0x7e54, 0x46ec, 0x2875, 0xb620, 0x8c4a,
                                        0x69bb, 0x6902, 0xb017, 0x326b};
    uint16_t halves[256];
    for (uint32_t i = 0; i < 256; i++) halves[i] = exl3_sign((const uint8_t *)packed, i);
    check_hash("signs ", halves, sizeof halves);
}

struct product { // one case through the table of operations
    uint16_t *trellis, *suh, *svh;
    uint32_t bits;
    enum exl3_codebook codebook;
    float x[ROWS * SIZE], y[ROWS * SIZE];
};

static void multiply(struct product *p) {
    struct cpu_pool *pool = NULL;
    struct ops o = {0};
    struct err e;
    CHECK_OK(cpu_pool_new(&pool, 2, &e), e);
    CHECK_OK(ops_cpu_open(&o, pool, NULL, &e), e);
    struct weight w = {.data = (uintptr_t)p->trellis,
                       .rows = SIZE,
                       .cols = SIZE,
                       .exl3 = {.half_bits = 2 * p->bits,
                                .codebook = p->codebook,
                                .suh = (uintptr_t)p->suh,
                                .svh = (uintptr_t)p->svh}};
    o.linear(o.ctx, &(struct linear_args){.x = (uintptr_t)p->x,
                                          .rows = ROWS,
                                          .parts_count = 1,
                                          .parts = {{.w = w, .y = (uintptr_t)p->y}}});
    CHECK_OK(o.sync(o.ctx, &e), e);
    ops_close(&o);
    cpu_pool_free(pool);
}

static double worst_of(const struct product *p, const float *want) {
    double worst = 0, range = 0;
    for (uint32_t i = 0; i < ROWS * SIZE; i++) {
        range = fmax(range, fabs((double)want[i]));
        worst = fmax(worst, fabs((double)p->y[i] - want[i]));
    }
    return worst / range;
}

/* The vectors' products start from the rotated activations rounded to fp16, which this backend does not round: given an input
 * that rotates to those, the sums must agree closely; given the vectors' own input, as closely as fp16 allows. */
TEST(the_linear_layer_gives_the_products_of_the_vectors) {
    static struct product p;
    if (!runs_here()) return;
    uint16_t ones[SIZE], *x = read_vectors("x.f16", WIDTHS * ROWS * SIZE * 2);
    uint16_t *suh = read_vectors("suh.f16", WIDTHS * SIZE * 2);
    uint16_t *svh = read_vectors("svh.f16", WIDTHS * SIZE * 2);
    uint16_t *xh = read_vectors("xh.f16", WIDTHS * ROWS * SIZE * 2);
    float *y = read_vectors("y.f32", WIDTHS * CODEBOOKS * ROWS * SIZE * 4);
    double worst = 0;
    for (uint32_t i = 0; i < SIZE; i++) ones[i] = 0x3c00;
    for (p.bits = 1; p.bits <= WIDTHS; p.bits++) {
        uint32_t first = (p.bits - 1) * ROWS * SIZE;
        p.trellis = random_words(1000 + p.bits, SIZE * SIZE * p.bits / 16);
        p.svh = svh + (p.bits - 1) * SIZE;
        for (int c = 0; c < CODEBOOKS; c++) {
            const float *want = y + ((p.bits - 1) * CODEBOOKS + (uint32_t)c) * ROWS * SIZE;
            p.codebook = (enum exl3_codebook)c;
            p.suh = ones;
            for (uint32_t i = 0; i < ROWS * SIZE; i++) p.x[i] = half_to(xh[first + i]);
            for (uint32_t i = 0; i < ROWS * SIZE; i += HADAMARD_CHANNELS) rotate(p.x + i);
            multiply(&p);
            worst = fmax(worst, worst_of(&p, want));
            CHECK(worst_of(&p, want) < 2e-6);
            p.suh = suh + (p.bits - 1) * SIZE;
            for (uint32_t i = 0; i < ROWS * SIZE; i++) p.x[i] = half_to(x[first + i]);
            multiply(&p);
            CHECK(worst_of(&p, want) < 2e-3);
        }
        free(p.trellis);
    }
    test_note("products within %.2g of the range", worst);
    free(x);
    free(suh);
    free(svh);
    free(xh);
    free(y);
}
