/* swiglu_plan: see launch.h. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/mlp/swiglu.h"

enum { THREADS = 256 };

void swiglu_plan(const struct swiglu_args *a, const struct cuda_arch *arch,
                 const struct cuda_work *w, struct launch_list *ret) {
    uint64_t count = (uint64_t)a->rows * a->dim;
    if (!count) return;
    struct launch *l = launch_add(ret, "swiglu", a, sizeof *a);
    l->grid[0] = (uint32_t)ceil_div_u64(count, THREADS * 4);
    l->block[0] = THREADS;
    l->early = true;
}
