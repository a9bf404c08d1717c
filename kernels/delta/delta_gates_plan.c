/* delta_gates_plan: see launch.h. A block a row. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/delta/delta_gates.h"

void delta_gates_plan(const struct delta_gates_args *a, const struct cuda_arch *arch,
                      const struct cuda_work *w, struct launch_list *ret) {
    if (!a->rows) return;
    struct launch *l = launch_add(ret, "delta_gates", a, sizeof *a);
    l->grid[0] = a->rows;
    l->block[0] = 64;
}
