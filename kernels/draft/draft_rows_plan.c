/* draft_rows_plan: see launch.h. What moves or scales rows for a drafter. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/draft/draft_conv.h"
#include "kernels/draft/draft_gather.h"
#include "kernels/draft/draft_keep.h"
#include "kernels/draft/draft_order.h"
#include "kernels/draft/draft_rotate.h"
#include "kernels/draft/draft_scale.h"

static void add(struct launch_list *ret, const char *kernel, const void *params, uint32_t bytes,
                uint32_t x, uint32_t y) {
    struct launch *l = launch_add(ret, kernel, params, bytes);
    l->grid[0] = x;
    l->grid[1] = y;
    l->block[0] = DRAFT_THREADS;
    l->early = true;
}

void draft_keep_plan(const struct draft_keep_args *a, const struct cuda_arch *arch,
                     const struct cuda_work *w, struct launch_list *ret) {
    if (a->rows) add(ret, "draft_keep", a, sizeof *a, a->rows, 1);
}

void draft_rotate_plan(const struct draft_rotate_args *a, const struct cuda_arch *arch,
                       const struct cuda_work *w, struct launch_list *ret) {
    uint32_t warps = DRAFT_THREADS / 32;
    if (a->rows) add(ret, "draft_rotate", a, sizeof *a, ceil_div_u32(a->rows * a->heads, warps), 1);
}

void draft_conv_plan(const struct draft_conv_args *a, const struct cuda_arch *arch,
                     const struct cuda_work *w, struct launch_list *ret) {
    if (a->rows) add(ret, "draft_conv", a, sizeof *a, ceil_div_u32(a->dim, DRAFT_THREADS), a->rows);
}

void draft_gather_plan(const struct draft_gather_args *a, const struct cuda_arch *arch,
                       const struct cuda_work *w, struct launch_list *ret) {
    if (a->rows) add(ret, "draft_gather", a, sizeof *a, a->rows, a->count);
}

void draft_scale_plan(const struct draft_scale_args *a, const struct cuda_arch *arch,
                      const struct cuda_work *w, struct launch_list *ret) {
    uint64_t blocks = (a->count + DRAFT_THREADS - 1) / DRAFT_THREADS;
    if (a->count)
        add(ret, "draft_scale", a, sizeof *a, (uint32_t)min_u64(blocks, 4 * arch->sm_count), 1);
}
