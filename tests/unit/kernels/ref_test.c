/* The twins of the CUDA kernels: right against double precision, and a row's bits its own. That the kernels give the
 * twins' bits is shown on a GPU (tests/gpu/). */
#include "common/mem.h"
#include "kernels/ops.h"
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
