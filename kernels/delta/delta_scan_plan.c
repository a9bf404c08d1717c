/* delta_scan_plan: see launch.h. A block a run, head and piece of its columns. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/delta/delta_scan.h"
#include "kernels/delta/delta_scan_order.h"

#include <assert.h>

void delta_scan_plan(const struct delta_scan_args *a, const struct cuda_arch *arch,
                     const struct cuda_work *w, struct launch_list *ret) {
    assert(a->key_dim <= DELTA_KEY_DIM_MAX && a->value_dim % DELTA_COLUMNS == 0);
    if (!a->runs_count) return;
    struct launch *l = launch_add(ret, "delta_scan", a, sizeof *a);
    l->grid[0] = a->value_dim / DELTA_COLUMNS;
    l->grid[1] = a->value_heads;
    l->grid[2] = a->runs_count;
    l->block[0] = DELTA_COLUMNS * DELTA_PARTS;
}
