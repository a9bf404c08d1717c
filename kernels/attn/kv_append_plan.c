/* kv_append_plan: see launch.h. A warp a head of a row. */
#include "common/num.h"
#include "kernels/attn/kv_append.h"
#include "kernels/attn/kv_order.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"

#include <assert.h>

void kv_append_plan(const struct kv_append_args *a, const struct cuda_arch *arch,
                    const struct cuda_work *w, struct launch_list *ret) {
    assert(a->kv.dim <= KV_DIM_MAX && a->kv.dim % 4 == 0);
    if (!a->rows.count) return;
    struct launch *l = launch_add(ret, "kv_append", a, sizeof *a);
    l->grid[0] = a->rows.count;
    l->grid[1] = ceil_div_u32(a->heads + a->kv.heads, KV_APPEND_WARPS);
    l->block[0] = KV_APPEND_WARPS * 32;
    l->early = true;
}
