/* linear_plan: see launch.h. One launch for the plain parts, two for the EXL3 ones with chains, two for those with integers. The
 * rows of a block change no bit. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_int_plan.h"
#include "kernels/linear/exl3_params.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_order.h"

#include <assert.h>

enum { FEW_ROWS = 8, MANY_ROWS = 32 };

static void plan_plain(const struct linear_args *a, struct launch_list *ret) {
    uint32_t blocks = 0, rows = a->rows <= FEW_ROWS ? FEW_ROWS : MANY_ROWS;
    for (uint32_t i = 0; i < a->parts_count; i++) blocks += linear_blocks(&a->parts[i].w);
    if (!blocks) return;
    struct launch *l = launch_add(ret, rows == FEW_ROWS ? "linear_8" : "linear_32", a, sizeof *a);
    l->grid[0] = blocks;
    l->grid[1] = ceil_div_u32(a->rows, rows);
    l->block[0] = LINEAR_WARPS * 32;
}

static void plan_exl3(const struct linear_args *a, const struct cuda_work *w,
                      struct launch_list *ret) {
    uint32_t blocks = 0, parts = 0, cols = a->parts[0].w.cols;
    uint32_t rows = a->rows <= FEW_ROWS ? FEW_ROWS : MANY_ROWS;
    for (uint32_t i = 0; i < a->parts_count; i++) {
        if (!a->parts[i].w.exl3.half_bits) continue;
        assert(!a->parts[i].w.exl3.rows_whole); // ops.exl3_views is false
        if (exl3_int_weight(&a->parts[i].w)) continue;
        blocks += a->parts[i].w.rows / EXL3_BLOCK;
        parts++;
    }
    if (!parts) return;
    struct exl3_params p = {.a = *a, .rotated = w->scratch};
    ret->scratch_bytes = (uint64_t)parts * a->rows * cols * sizeof(uint16_t);
    struct launch *l = launch_add(ret, "exl3_rotate_rows", &p, sizeof p);
    l->grid[0] = cols / EXL3_BLOCK;
    l->grid[1] = a->rows;
    l->grid[2] = parts;
    l->block[0] = 32;
    l = launch_add(ret, rows == FEW_ROWS ? "exl3_8" : "exl3_32", &p, sizeof p);
    l->grid[0] = blocks;
    l->grid[1] = ceil_div_u32(a->rows, rows);
    l->block[0] = LINEAR_WARPS * min_u32(linear_segments(cols), LINEAR_SEGMENTS_BESIDE) * 32;
}

void linear_plan(const struct linear_args *a, const struct cuda_arch *arch,
                 const struct cuda_work *w, struct launch_list *ret) {
    if (!a->rows) return;
    plan_plain(a, ret);
    plan_exl3(a, w, ret);
    exl3_int_plan(a, arch, w, ret);
}
