/* draw_plan: see launch.h. A block a row. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/sample/draw.h"
#include "kernels/sample/draw_order.h"

void draw_plan(const struct draw_args *a, const struct cuda_arch *arch, const struct cuda_work *w,
               struct launch_list *ret) {
    if (!a->rows_count) return;
    struct launch *l = launch_add(ret, "draw", a, sizeof *a);
    l->grid[0] = a->rows_count;
    l->block[0] = DRAW_THREADS;
}
