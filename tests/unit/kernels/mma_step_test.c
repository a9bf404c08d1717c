/* The tensor-core step on the host against 100,096 steps that an H200 computed (tests/golden/mma): every bit. A twin is worth
 * what this function is. */
#include "common/mem.h"
#include "kernels/cuda/arith.h"
#include "kernels/cuda/mma_step.h"
#include "tests/lib/mma_cases.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>

enum { STEPS = MMA_CASES * MMA_ROWS * MMA_COLS };

static float *recorded(void) {
    char path[4096];
    float *v = mem_alloc(STEPS * sizeof *v);
    snprintf(path, sizeof path, "%s/tests/golden/mma/steps.bin", test_source_dir());
    FILE *f = fopen(path, "rb");
    CHECK(f);
    CHECK_EQ(fread(v, sizeof *v, STEPS, f), STEPS);
    CHECK_EQ(fgetc(f), EOF);
    fclose(f);
    return v;
}

// Column c of the case for all rows; lanes are the rows.
static void run_column(const struct mma_case *m, uint32_t c, float ret[MMA_LANES]) {
    struct mma_vec a[MMA_K];
    struct mma_one b[MMA_K];
    for (uint32_t k = 0; k < MMA_K; k++) {
        b[k] = mma_split(m->b[c][k], m->dtype);
        for (uint32_t r = 0; r < MMA_LANES; r++) mma_put(&a[k], r, mma_split(m->a[r][k], m->dtype));
    }
    for (uint32_t r = 0; r < MMA_LANES; r++) ret[r] = arith_float(m->c[r][c]);
    mma_step(ret, a, b);
}

TEST(steps_recorded_on_a_gpu_come_out_to_the_bit) {
    float *want = recorded();
    uint32_t kinds[2][MMA_KINDS] = {{0}};
    for (uint32_t i = 0; i < MMA_CASES; i++) {
        struct mma_case m;
        mma_case_make(i, &m);
        for (uint32_t c = 0; c < MMA_COLS; c++) {
            float got[MMA_LANES];
            run_column(&m, c, got);
            for (uint32_t r = 0; r < MMA_ROWS; r++) {
                float w = want[(i * MMA_ROWS + r) * MMA_COLS + c];
                if (arith_bits(w) == arith_bits(got[r]) || (w != w && got[r] != got[r])) continue;
                test_fail(__FILE__, __LINE__, "case %u (kind %u) row %u column %u: %a, wanted %a",
                          i, i / 2 % MMA_KINDS, r, c, (double)got[r], (double)w);
            }
        }
        kinds[i % 2][i / 2 % MMA_KINDS] += MMA_ROWS * MMA_COLS;
    }
    for (uint32_t k = 0; k < MMA_KINDS; k++)
        test_note("kind %u: %u steps of fp16, %u of bf16", k, kinds[0][k], kinds[1][k]);
    free(want);
}

// A step that takes its terms in another grouping is another step: the test above can tell.
TEST(a_step_cut_in_two_gives_other_bits) {
    float *want = recorded();
    uint32_t differ = 0, all = 0;
    for (uint32_t i = 0; i < MMA_CASES; i += 2 * MMA_KINDS) {
        struct mma_case m, low, high;
        mma_case_make(i, &m);
        low = high = m;
        for (uint32_t k = 0; k < MMA_DEPTH; k++)
            for (uint32_t c = 0; c < MMA_COLS; c++) (k < MMA_DEPTH / 2 ? &high : &low)->b[c][k] = 0;
        for (uint32_t c = 0; c < MMA_COLS; c++) {
            float got[MMA_LANES];
            run_column(&low, c, got);
            for (uint32_t r = 0; r < MMA_ROWS; r++) high.c[r][c] = arith_bits(got[r]);
            run_column(&high, c, got);
            for (uint32_t r = 0; r < MMA_ROWS; r++, all++)
                differ += want[(i * MMA_ROWS + r) * MMA_COLS + c] != got[r];
        }
    }
    test_note("%u of %u differ", differ, all);
    CHECK(differ > all / 10);
    free(want);
}
