/* delta_scan_plan: see launch.h. A block a run, head and piece of its columns. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/delta/delta_scan.h"
#include "kernels/delta/delta_scan_order.h"

#include <assert.h>

// Of the groups of columns of a head: the most warps, up to four, that divide them.
static uint32_t warps_of(uint32_t groups) {
    uint32_t warps = DELTA_SCAN_WARPS_MAX;
    while (groups % warps) warps--;
    return warps;
}

void delta_scan_plan(const struct delta_scan_args *a, const struct cuda_arch *arch,
                     const struct cuda_work *w, struct launch_list *ret) {
    assert(a->key_dim <= DELTA_KEY_DIM_MAX && a->value_dim % DELTA_COLUMNS == 0);
    if (!a->runs_count) return;
    uint32_t rows = delta_rows_padded(a->key_dim);
    uint32_t cols = rows == DELTA_KEY_DIM_MAX ? DELTA_COLUMNS / 2 : DELTA_COLUMNS; // of a warp
    uint32_t warps = warps_of(a->value_dim / cols);
    struct launch *l = launch_add(ret,
                                  a->key_dim == 128 ? "delta_scan_128"
                                  : rows == 64      ? "delta_scan_up_to_64"
                                  : rows == 128     ? "delta_scan_up_to_128"
                                                    : "delta_scan_up_to_256",
                                  a, sizeof *a);
    l->grid[0] = a->value_dim / cols / warps;
    l->grid[1] = a->value_heads;
    l->grid[2] = a->runs_count;
    l->block[0] = (warps + 1) * 32;
    l->early = true;
}
