/* draft_top_plan: see launch.h. Blocks for pieces of each row, then one a row for what they left. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/draft/draft_order.h"
#include "kernels/draft/draft_top_params.h"

#include <assert.h>

enum { BATCHES = 2, BLOCKS_MAX = 128, THREADS = DRAFT_TOP_WARPS * 32 };

void draft_top_plan(const struct draft_top_args *a, const struct cuda_arch *arch,
                    const struct cuda_work *w, struct launch_list *ret) {
    uint32_t longest = 1;
    assert(a->k >= 1 && a->k <= DRAFT_TOP_MAX);
    if (!a->rows) return;
    for (uint32_t i = 0; i < a->parts_count; i++) longest = max_u32(longest, a->parts[i].count);
    uint32_t each = DRAFT_TOP_WARPS * DRAFT_TOP_BATCH * BATCHES;
    struct draft_top_params p = {
        .a = *a, .keys = w->scratch, .blocks = min_u32(ceil_div_u32(longest, each), BLOCKS_MAX)};
    ret->scratch_bytes = (uint64_t)a->rows * p.blocks * a->k * sizeof(uint64_t);
    struct launch *l = launch_add(ret, "draft_top", &p, sizeof p);
    l->grid[0] = p.blocks;
    l->grid[1] = a->rows;
    l->block[0] = THREADS;
    l->early = true;
    l = launch_add(ret, "draft_top_merge", &p, sizeof p);
    l->grid[0] = a->rows;
    l->block[0] = THREADS;
    l->early = true;
}
