/* The writer of EXL3 checkpoints: its coder against squared errors that a plain double-precision search of the same kind reached,
 * its bits against the engine's decoder, and a whole linear. */
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/cpu_pool.h"
#include "kernels/linear/exl3_decode.h"
#include "tests/lib/half.h"
#include "tests/lib/test.h"
#include "tests/tools/exl3_linear.h"
#include "tests/tools/exl3_trellis.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double uniform(uint64_t *seed) {
    return (double)(mix_u64(++*seed) >> 11) * 0x1p-53;
}

static double normal(uint64_t *seed) {
    double s = -6;
    for (int i = 0; i < 12; i++) s += uniform(seed);
    return s;
}

// The targets of tests/golden/exl3/tiles.f32, two tiles; errors of the two-pass search in double precision.
static const struct {
    enum exl3_codebook codebook;
    uint32_t bits;
    double error[2];
} cases[] = {{EXL3_MUL1, 2, {18.964872886892408, 17.49483472085558}},
             {EXL3_MUL1, 3, {4.247163039157745, 3.972003022289718}},
             {EXL3_MUL1, 4, {0.9708114868146367, 0.9501885931682771}},
             {EXL3_MCG, 3, {6.263041998945642, 6.164336509454899}},
             {EXL3_3INST, 3, {6.861908291258385, 6.293893087703644}}};

TEST(the_coder_comes_as_near_to_its_targets_as_a_search_in_double_precision) {
    char path[600];
    float tiles[2][TRELLIS_SYMBOLS], x[TRELLIS_SYMBOLS];
    uint16_t states[TRELLIS_SYMBOLS];
    snprintf(path, sizeof path, "%s/tests/golden/exl3/tiles.f32", test_source_dir());
    FILE *f = fopen(path, "rb");
    CHECK(f != NULL);
    CHECK_EQ(fread(tiles, 1, sizeof tiles, f), sizeof tiles);
    fclose(f);
    struct trellis_room *room = trellis_room_new();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct trellis_coder *c = trellis_coder_new(cases[i].codebook, 2 * cases[i].bits);
        double scale = trellis_input_deviation(cases[i].codebook, 2 * cases[i].bits);
        for (int t = 0; t < 2; t++) {
            for (uint32_t k = 0; k < TRELLIS_SYMBOLS; k++)
                x[k] = (float)((double)tiles[t][k] * scale);
            double error = trellis_code(c, room, x, states);
            if (!(error <= cases[i].error[t] * (1 + 1e-6)))
                test_fail(__FILE__, __LINE__, "case %zu, tile %d: error %.9g, wanted %.9g", i, t,
                          error, cases[i].error[t]);
        }
        trellis_coder_free(c);
    }
    trellis_room_free(room);
}

static void decode(const void *tile, uint32_t half_bits, enum exl3_codebook c, float *ret) {
    if (c == EXL3_MUL1)
        exl3_tile(tile, half_bits, EXL3_MUL1, ret, EXL3_TILE);
    else if (c == EXL3_MCG)
        exl3_tile(tile, half_bits, EXL3_MCG, ret, EXL3_TILE);
    else
        exl3_tile(tile, half_bits, EXL3_3INST, ret, EXL3_TILE);
}

/* Of every width, halves too: the engine's decoder must give the very values that the coder chose, and more bits must not
 * come out worse. */
TEST(the_engine_decodes_what_the_coder_packs_at_every_width) {
    struct trellis_room *room = trellis_room_new();
    uint8_t bytes[2 * EXL3_TILE * EXL3_TILE];
    float x[TRELLIS_SYMBOLS], got[EXL3_TILE * EXL3_TILE];
    uint16_t states[TRELLIS_SYMBOLS];
    for (int c = EXL3_3INST; c <= EXL3_MUL1; c++) {
        double before = INFINITY;
        for (uint32_t h = EXL3_HALF_BITS_MIN; h <= EXL3_HALF_BITS_MAX;
             h += c == EXL3_MUL1 ? 1 : 2) {
            uint64_t seed = 99;
            struct trellis_coder *coder = trellis_coder_new((enum exl3_codebook)c, h);
            double scale = trellis_input_deviation((enum exl3_codebook)c, h);
            for (uint32_t i = 0; i < TRELLIS_SYMBOLS; i++) x[i] = (float)(scale * normal(&seed));
            double error = trellis_code(coder, room, x, states) / (scale * scale);
            trellis_pack(coder, states, bytes);
            decode(bytes, h, (enum exl3_codebook)c, got);
            for (uint32_t t = 0; t < TRELLIS_SYMBOLS; t++) {
                float v = got[trellis_symbol_column(t) * EXL3_TILE + trellis_symbol_row(t)];
                if (v != trellis_value(coder, states[t]))
                    test_fail(__FILE__, __LINE__, "codebook %d, %g bits, symbol %u: %g for %g", c,
                              h / 2.0, t, (double)v, (double)trellis_value(coder, states[t]));
            }
            CHECK(error < before);
            before = error;
            trellis_coder_free(coder);
        }
    }
    trellis_room_free(room);
}

enum { INS = 256, OUTS = 128, RANK = 64, ZERO_COLUMN = 7 };

struct matrix {
    float w[OUTS * INS], moments[INS * INS];
};

// Rows of uneven size, an output of zeros, and inputs that hang together: the moments are of RANK directions and some noise.
static struct matrix *make_matrix(void) {
    struct matrix *m = mem_alloc(sizeof *m);
    uint64_t seed = 5;
    double *a = mem_alloc(INS * RANK * sizeof *a);
    for (uint32_t k = 0; k < INS; k++) {
        double size = exp(0.3 * normal(&seed)) / 16;
        for (uint32_t n = 0; n < OUTS; n++)
            m->w[n * INS + k] = n == ZERO_COLUMN ? 0 : (float)(size * normal(&seed));
    }
    for (uint32_t i = 0; i < INS * RANK; i++) a[i] = normal(&seed);
    for (uint32_t i = 0; i < INS; i++)
        for (uint32_t j = 0; j < INS; j++) {
            double s = i == j ? 0.09 : 0;
            for (uint32_t r = 0; r < RANK; r++) s += a[i * RANK + r] * a[j * RANK + r];
            m->moments[i * INS + j] = (float)s;
        }
    free(a);
    return m;
}

static void make_linear(struct exl3_linear *ret, const struct matrix *m, bool moments,
                        uint32_t threads) {
    struct exl3_source s = {.name = "x.q_proj",
                            .rows = OUTS,
                            .cols = INS,
                            .w = m->w,
                            .moments = moments ? m->moments : NULL,
                            .codebook = EXL3_MUL1,
                            .half_bits = 6,
                            .seed = 1};
    struct cpu_pool *pool = NULL;
    struct err e = {0};
    CHECK_OK(cpu_pool_new(&pool, threads, &e), e);
    CHECK_OK(exl3_linear_make(ret, &s, pool, &e), e);
    cpu_pool_free(pool);
}

// Without moments the loss is the coder's own; with them the outputs must come out much better though the weights do not.
TEST(a_linear_loses_what_its_bits_allow_and_less_of_its_outputs_with_moments) {
    struct matrix *m = make_matrix();
    struct exl3_linear plain = {0}, fed = {0};
    make_linear(&plain, m, false, 2);
    make_linear(&fed, m, true, 2);
    test_note("3 bits: weights %.5f; with moments: weights %.5f, outputs %.5f", plain.weight_loss,
              fed.weight_loss, fed.output_loss);
    CHECK(plain.weight_loss < 0.019);
    CHECK(isnan(plain.output_loss));
    CHECK(fed.output_loss < plain.weight_loss / 2);
    CHECK_EQ(fed.svh[ZERO_COLUMN] & 0x7fff, 0); // zeros come out as zeros
    exl3_linear_fini(&plain);
    exl3_linear_fini(&fed);
    free(m);
}

TEST(a_linear_is_the_same_for_any_number_of_threads) {
    struct matrix *m = make_matrix();
    struct exl3_linear one = {0}, three = {0};
    make_linear(&one, m, true, 1);
    make_linear(&three, m, true, 3);
    CHECK_EQ(one.trellis_bytes, INS * OUTS * 3 / 8);
    CHECK_MEM(one.trellis, three.trellis, one.trellis_bytes);
    CHECK_MEM(one.suh, three.suh, INS * sizeof *one.suh);
    CHECK_MEM(one.svh, three.svh, OUTS * sizeof *one.svh);
    exl3_linear_fini(&one);
    exl3_linear_fini(&three);
    free(m);
}

TEST(a_matrix_that_the_format_cannot_hold_is_refused_by_name) {
    struct matrix *m = make_matrix();
    struct exl3_linear l = {0};
    struct err e = {0};
    struct exl3_source s = {.name = "x.up_proj",
                            .rows = OUTS,
                            .cols = INS,
                            .w = m->w,
                            .codebook = EXL3_MCG,
                            .half_bits = 7};
    CHECK_EQ(exl3_linear_make(&l, &s, NULL, &e), ST_INVAL);
    CHECK_HAS(e.msg, "x.up_proj: wanted 1 to 8 bits, halves with MUL1 alone, found 3.5");
    s.half_bits = 6, s.rows = 100;
    CHECK_EQ(exl3_linear_make(&l, &s, NULL, &e), ST_INVAL);
    CHECK_HAS(e.msg, "multiples of 128, found [100, 256]");
    s.rows = OUTS, m->w[9] = INFINITY;
    CHECK_EQ(exl3_linear_make(&l, &s, NULL, &e), ST_INVAL);
    CHECK_HAS(e.msg, "weight 9 is not finite");
    m->w[9] = 0, m->moments[0] = -1e6f, s.moments = m->moments;
    CHECK_EQ(exl3_linear_make(&l, &s, NULL, &e), ST_CORRUPT);
    CHECK_HAS(e.msg, "no Cholesky factor");
    CHECK(l.trellis == NULL);
    free(m);
}
