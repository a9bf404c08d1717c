/* The twins of the CUDA kernels: right against double precision, and a row's bits its own. That the kernels give the
 * twins' bits is shown on a GPU (tests/gpu/). */
#include "common/mem.h"
#include "kernels/ops.h"
#include "kernels/types.h"
#include "tests/lib/op_cases.h"
#include "tests/lib/ops_ref.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_case(const struct op_case *c, const float *got, double *worst) {
    double *want = mem_calloc(c->outputs, sizeof *want), range = 0, bad = 0;
    double tolerance = c->half_tolerance > 0 ? c->half_tolerance : c->tolerance;
    c->reference(c, want);
    for (uint32_t i = 0; i < c->outputs; i++) range = fmax(range, fabs(want[i]));
    for (uint32_t i = 0; i < c->outputs; i++) {
        double d = fabs((double)got[i] - want[i]);
        if (!(d <= tolerance * range))
            test_fail(__FILE__, __LINE__,
                      "%s [%u, %u, %u, %u, %u, %u] output %u: found %.9g, wanted %.9g", c->name,
                      c->size[0], c->size[1], c->size[2], c->size[3], c->size[4], c->size[5], i,
                      (double)got[i], want[i]);
        bad = fmax(bad, d);
    }
    if (range > 0) *worst = fmax(*worst, bad / range);
    free(want);
}

TEST(every_twin_is_right_at_awkward_shapes) {
    struct ops o;
    double worst = 0;
    ops_ref_open(&o);
    for (uint32_t i = 0; i < op_cases_count; i++) {
        const struct op_case *c = &op_cases[i];
        float *got = mem_calloc(c->outputs, sizeof *got);
        c->run(&o, c, 0, got);
        check_case(c, got, &worst);
        free(got);
        if (i + 1 < op_cases_count && !strcmp(op_cases[i + 1].name, c->name)) continue;
        test_note("%-12s within %.2g of the range", c->name, worst);
        worst = 0;
    }
    ops_close(&o);
}

// The few rows are enough here: all forms have the same bits, and a GPU is asked for the others (tests/gpu/).
TEST(products_of_exl3_are_as_exact_as_they_must_be) {
    struct ops o;
    double worst[2] = {0};
    ops_ref_open(&o);
    for (uint32_t i = 0; i < op_cases_products_count; i++) {
        const struct op_case *c = &op_cases_products[i];
        bool fifty = c->size[5] & EXL3_FIFTY;
        if (c->size[0] > 2) continue;
        double error = op_cases_error(&o, c);
        CHECK(error <= (fifty ? OP_CASES_ERROR_FIFTY_MAX : OP_CASES_ERROR_MAX));
        worst[fifty] = fmax(worst[fifty], error);
    }
    test_note("rms error %.2e, with one channel 50x %.2e", worst[0], worst[1]);
    ops_close(&o);
}

TEST(groupings_of_rows_change_no_bit_of_a_twin) {
    struct ops o;
    ops_ref_open(&o);
    for (uint32_t i = 0; i < op_cases_count; i++) {
        const struct op_case *c = &op_cases[i];
        float *want = mem_calloc(c->outputs, sizeof *want);
        float *got = mem_calloc(c->outputs, sizeof *got);
        c->run(&o, c, 0, want);
        c->run(&o, c, 2, got);
        for (uint32_t k = 0; k < c->outputs; k++)
            if (memcmp(&want[k], &got[k], sizeof *got))
                test_fail(__FILE__, __LINE__,
                          "%s [%u, %u, %u, %u, %u, %u] output %u: %.9g and %.9g", c->name,
                          c->size[0], c->size[1], c->size[2], c->size[3], c->size[4], c->size[5], k,
                          (double)want[k], (double)got[k]);
        free(want);
        free(got);
    }
    ops_close(&o);
}

static double rms_of(const double *v, uint32_t count) {
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += v[i] * v[i];
    return sqrt(sum / count);
}

// A row of a MUL1 part: the error of its integers, to the rms of the row. The worst goes to *worst.
static void check_int_row(const struct op_case *c, uint32_t row, const float *got, double *want,
                          double bound, double *worst) {
    uint32_t n = c->size[2];
    if (c->size[5] & EXL3_ROW && row % 4 >= 2) { // a NaN, an infinity
        for (uint32_t i = 0; i < n; i++) CHECK(isnan(got[i]));
        return;
    }
    double range = rms_of(want, n);
    for (uint32_t i = 0; i < n; i++) want[i] -= (double)got[i];
    double bad = rms_of(want, n);
    if (!(bad <= bound * range))
        test_fail(__FILE__, __LINE__, "exl3 [%u, %u, %u, %u] row %u: rms error %.3g of %.3g",
                  c->size[0], c->size[1], n, c->size[3], row, bad, range);
    if (range > 0) *worst = fmax(*worst, bad / range);
}

static double check_int_case(const struct ops *o, const struct op_case *c, double bound) {
    float *got = mem_calloc(c->outputs, sizeof *got);
    double *want = mem_calloc(c->outputs, sizeof *want), worst = 0;
    c->run(o, c, 0, got);
    c->reference(c, want);
    for (uint32_t r = 0; r < c->size[0]; r++)
        check_int_row(c, r, got + (size_t)r * c->size[2], want + (size_t)r * c->size[2], bound,
                      &worst);
    free(got);
    free(want);
    return worst;
}

// exl3_int.h's bounds, with the format's fp16 rounding of the weights (2.1e-4) left out there and not here.
TEST(integer_products_stay_within_their_bound_at_every_width) {
    static const double bound_normal = 7e-4, bound_long = 8e-4, bound_channel = 2e-3;
    double normal = 0, channel = 0;
    struct ops o;
    ops_ref_open(&o);
    for (uint32_t i = 0; i < op_cases_rows_count; i++) {
        const struct op_case *c = &op_cases_rows[i];
        if (strcmp(c->name, "exl3") || c->size[4] != EXL3_MUL1 || c->size[0] > 6) continue;
        if (c->size[5] & EXL3_CHANNEL)
            channel = fmax(channel, check_int_case(&o, c, bound_channel));
        else
            normal =
                fmax(normal, check_int_case(&o, c, c->size[1] > 8192 ? bound_long : bound_normal));
    }
    test_note("rms error: %.2g of a row's rms, %.2g with a channel of a thousand times the others",
              normal, channel);
    CHECK(normal > 0 && channel > 0);
    ops_close(&o);
}
