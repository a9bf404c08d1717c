/* attn_plan: see launch.h. A block a row, key head and eight of its query heads. */
#include "common/num.h"
#include "kernels/attn/attn.h"
#include "kernels/attn/kv_order.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"

#include <assert.h>

enum {
    DIM_STEP = 16,
    // Floats beside the rows: scores, two maxima, two sums, two factors, and one that pads.
    FIXED = ATTN_QUERIES * (ATTN_TILE + 6) + 1,
    ROWS = 3, // of a query: itself, the chunk's values, those of all chunks
};

static const char *kernel_of(enum dtype d) {
    switch (d) {
    case DTYPE_BF16: return "attn_bf16";
    case DTYPE_E4M3: return "attn_e4m3";
    default: assert(d == DTYPE_F32); return "attn_f32";
    }
}

void attn_plan(const struct attn_args *a, const struct cuda_arch *arch, const struct cuda_work *w,
               struct launch_list *ret) {
    assert(a->kv.dim <= KV_DIM_MAX && a->kv.dim % DIM_STEP == 0 && a->heads % a->kv.heads == 0);
    if (!a->rows.count) return;
    struct launch *l = launch_add(ret, kernel_of(a->kv.dtype), a, sizeof *a);
    l->grid[0] = a->rows.count;
    l->grid[1] = a->kv.heads;
    l->grid[2] = ceil_div_u32(a->heads / a->kv.heads, ATTN_QUERIES);
    l->block[0] = 128;
    l->shared_bytes = (FIXED + ROWS * ATTN_QUERIES * a->kv.dim) * sizeof(float);
}
