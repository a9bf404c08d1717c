/* delta_gates_plan: see launch.h. A thread a head of a row. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/delta/delta_gates.h"

enum { THREADS = 128 };

void delta_gates_plan(const struct delta_gates_args *a, const struct cuda_arch *arch,
                      const struct cuda_work *w, struct launch_list *ret) {
    if (!a->rows) return;
    struct launch *l = launch_add(ret, "delta_gates", a, sizeof *a);
    l->grid[0] = ceil_div_u32(a->rows * a->heads, THREADS);
    l->block[0] = THREADS;
    l->early = true;
}
