/* q4_plan: see launch.h. The rows of a block change no bit. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/draft/draft_order.h"
#include "kernels/draft/q4_linear.h"
#include "kernels/draft/q4_pack.h"

#include <assert.h>

enum { FEW_ROWS = 8, MANY_ROWS = 32 };

void q4_pack_plan(const struct q4_pack_args *a, const struct cuda_arch *arch,
                  const struct cuda_work *w, struct launch_list *ret) {
    assert(!a->from.exl3.half_bits && a->to.cols % Q4_GROUP == 0);
    if (!a->to.rows) return;
    struct launch *l = launch_add(ret, "q4_pack", a, sizeof *a);
    l->grid[0] = a->to.rows;
    l->block[0] = DRAFT_THREADS;
    l->early = true;
}

void q4_linear_plan(const struct q4_linear_args *a, const struct cuda_arch *arch,
                    const struct cuda_work *w, struct launch_list *ret) {
    uint32_t tiles = 0, rows = a->rows <= FEW_ROWS ? FEW_ROWS : MANY_ROWS;
    for (uint32_t i = 0; i < a->parts_count; i++)
        tiles += ceil_div_u32(a->parts[i].w.rows, Q4_TILE);
    if (!a->rows || !tiles) return;
    struct launch *l = launch_add(ret, rows == FEW_ROWS ? "q4_8" : "q4_32", a, sizeof *a);
    l->grid[0] = tiles;
    l->grid[1] = ceil_div_u32(a->rows, rows);
    l->block[0] = Q4_WARPS * 32;
    l->early = true;
}
