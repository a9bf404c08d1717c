/* draft_attn_plan: see launch.h. Chunks by the greatest context that a slot can have. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/draft/draft_attn_params.h"
#include "kernels/draft/draft_order.h"

#include <assert.h>

enum { CHUNKS_MAX = 16 };

void draft_attn_plan(const struct draft_attn_args *a, const struct cuda_arch *arch,
                     const struct cuda_work *w, struct launch_list *ret) {
    const struct draft_context *c = &a->context;
    assert(c->dim <= DRAFT_HEAD_DIM_MAX && a->heads % c->heads == 0);
    if (!a->rows) return;
    uint32_t keys = c->ring ? c->ring : c->pages_per_slot * KV_PAGE_TOKENS;
    if (a->window) keys = min_u32(keys, a->window);
    uint32_t chunk =
        ceil_div_u32(ceil_div_u32(keys, CHUNKS_MAX), DRAFT_ATTN_CHUNK) * DRAFT_ATTN_CHUNK;
    struct draft_attn_params p = {.a = *a, .partial = w->scratch, .chunk = chunk};
    p.chunks = ceil_div_u32(keys, chunk) + 2; // they begin at multiples; and the block's own
    ret->scratch_bytes = (uint64_t)a->rows * a->heads * p.chunks * (c->dim + 2) * sizeof(float);
    struct launch *l = launch_add(ret, "draft_attn", &p, sizeof p);
    l->grid[0] = p.chunks;
    l->grid[1] = a->heads;
    l->grid[2] = a->blocks_count;
    l->block[0] = DRAFT_ATTN_WARPS * 32;
    l->shared_bytes = DRAFT_ATTN_TILE * (c->dim + 1) * (uint32_t)sizeof(float);
    l->early = true;
    l = launch_add(ret, "draft_attn_join", &p, sizeof p);
    l->grid[0] = ceil_div_u32(a->rows * a->heads, DRAFT_ATTN_WARPS);
    l->block[0] = DRAFT_ATTN_WARPS * 32;
    l->early = true;
}
