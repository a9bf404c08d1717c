/* draw_plan: see launch.h. A block a piece of a row, twice. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/sample/draw.h"
#include "kernels/sample/draw_order.h"

void draw_plan(const struct draw_args *a, const struct cuda_arch *arch, const struct cuda_work *w,
               struct launch_list *ret) {
    if (!a->rows_count) return;
    static const char *const kernels[] = {"draw_top", "draw_pick"};
    struct draw_params p = {.a = *a, .pieces = ceil_div_u32(a->vocab, DRAW_PIECE)};
    uint64_t pieces = (uint64_t)a->rows_count * p.pieces;
    p.bests = w->scratch;
    p.tops = p.bests + pieces * sizeof(struct draw_best);
    p.counters = w->counters;
    ret->scratch_bytes = pieces * (sizeof(struct draw_best) + sizeof(uint64_t));
    ret->counters = a->rows_count;
    for (int i = 0; i < 2; i++) {
        struct launch *l = launch_add(ret, kernels[i], &p, sizeof p);
        l->grid[0] = p.pieces;
        l->grid[1] = a->rows_count;
        l->block[0] = DRAW_THREADS;
        l->early = true;
    }
}
