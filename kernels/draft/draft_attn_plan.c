/* draft_attn_plan: see launch.h. Chunks by the greatest context that a slot can have. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/draft/draft_attn_params.h"
#include "kernels/draft/draft_order.h"

#include <assert.h>

enum { CHUNKS_MAX = 16 };

// Grid: chunks, and one for the block's own rows; y heads; blocks.
static struct launch *add_chunks(struct draft_attn_params *p, const char *kernel, uint32_t step,
                                 uint32_t y, struct launch_list *ret) {
    const struct draft_context *c = &p->a.context;
    uint32_t keys = c->ring ? c->ring : c->pages_per_slot * KV_PAGE_TOKENS;
    if (p->a.window) keys = min_u32(keys, p->a.window);
    p->chunk = ceil_div_u32(ceil_div_u32(keys, CHUNKS_MAX), step) * step;
    p->chunks = ceil_div_u32(keys, p->chunk) + 2; // they begin at multiples; and the block's own
    ret->scratch_bytes =
        (uint64_t)p->a.rows * p->a.heads * p->chunks * (c->dim + 2) * sizeof(float);
    struct launch *l = launch_add(ret, kernel, p, sizeof *p);
    l->grid[0] = p->chunks;
    l->grid[1] = y;
    l->grid[2] = p->a.blocks_count;
    l->early = true;
    return l;
}

static void plan_lanes(struct draft_attn_params *p, struct launch_list *ret) {
    struct launch *l = add_chunks(p, "draft_attn", DRAFT_ATTN_CHUNK, p->a.heads, ret);
    l->block[0] = DRAFT_ATTN_WARPS * 32;
    l->shared_bytes = DRAFT_ATTN_TILE * (p->a.context.dim + 1) * (uint32_t)sizeof(float);
}

static void plan_mma(struct draft_attn_params *p, struct launch_list *ret) {
    const struct draft_context *c = &p->a.context;
    struct launch *l = add_chunks(p, c->dim == 64 ? "draft_attn_mma_64" : "draft_attn_mma_128",
                                  DRAFT_MMA_CHUNK, c->heads, ret);
    l->block[0] = DRAFT_MMA_WARPS * 32;
    l->shared_bytes = DRAFT_MMA_STAGES * 2 * DRAFT_MMA_TILE * (c->dim + DRAFT_MMA_PAD) *
                      (uint32_t)sizeof(uint16_t);
}

void draft_attn_plan(const struct draft_attn_args *a, const struct cuda_arch *arch,
                     const struct cuda_work *w, struct launch_list *ret) {
    const struct draft_context *c = &a->context;
    struct draft_attn_params p = {.a = *a, .partial = w->scratch};
    assert(c->dim <= DRAFT_HEAD_DIM_MAX && a->heads % c->heads == 0);
    if (!a->rows) return;
    if (c->dtype == DTYPE_BF16 && (c->dim == 64 || c->dim == 128))
        plan_mma(&p, ret);
    else
        plan_lanes(&p, ret);
    struct launch *l = launch_add(ret, "draft_attn_join", &p, sizeof p);
    l->grid[0] = ceil_div_u32(a->rows * a->heads, DRAFT_ATTN_WARPS);
    l->block[0] = DRAFT_ATTN_WARPS * 32;
    l->early = true;
}
