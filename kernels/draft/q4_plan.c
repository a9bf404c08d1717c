/* q4_plan: see launch.h. The rows of a block, and its outputs, change no bit. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/draft/draft_order.h"
#include "kernels/draft/q4_pack.h"
#include "kernels/draft/q4_params.h"

#include <assert.h>

enum {
    SOME_OUTPUTS = 4096,
    MANY_OUTPUTS = 16384,
    Q4_TILE_BYTES = 8 * Q4_GROUP * 2, // of eight rows' values in a group
};

void q4_pack_plan(const struct q4_pack_args *a, const struct cuda_arch *arch,
                  const struct cuda_work *w, struct launch_list *ret) {
    assert(!a->from.exl3.half_bits && a->to.cols % Q4_GROUP == 0);
    if (!a->to.rows) return;
    struct launch *l = launch_add(ret, "q4_pack", a, sizeof *a);
    l->grid[0] = a->to.rows;
    l->block[0] = DRAFT_THREADS;
    l->early = true;
}

// Sixteens of outputs of a block: the rows pass once for each block, but all multiprocessors want several.
static uint32_t sixteens(uint32_t outputs, uint32_t rows) {
    return outputs >= (rows > 16 ? SOME_OUTPUTS : MANY_OUTPUTS) ? 2 : 1;
}

void q4_linear_plan(const struct q4_linear_args *a, const struct cuda_arch *arch,
                    const struct cuda_work *w, struct launch_list *ret) {
    static const char *const names[3][3] = {
        {NULL, "q4_8_1", "q4_8_2"}, {NULL, "q4_16_1", "q4_16_2"}, {NULL, "q4_32_1", "q4_32_2"}};
    uint32_t outputs = 0, tiles = 0, size = a->rows <= 8 ? 0 : a->rows <= 16 ? 1 : 2;
    uint32_t rows = 8u << size, turns = ceil_div_u32(a->rows, rows), all = turns * rows / 8;
    for (uint32_t i = 0; i < a->parts_count; i++) outputs += a->parts[i].w.rows;
    if (!a->rows || !outputs) return;
    uint32_t m = sixteens(outputs, rows), groups = a->parts[0].w.cols / Q4_GROUP;
    for (uint32_t i = 0; i < a->parts_count; i++) tiles += ceil_div_u32(a->parts[i].w.rows, 16 * m);
    struct q4_params p = {.a = *a, .values = w->scratch};
    p.sums = p.values + (uint64_t)all * groups * Q4_TILE_BYTES;
    ret->scratch_bytes = (uint64_t)all * groups * (Q4_TILE_BYTES + 8 * sizeof(float));
    struct launch *l = launch_add(ret, "q4_rows", &p, sizeof p);
    l->grid[0] = ceil_div_u32(groups, DRAFT_THREADS / 32);
    l->grid[1] = all;
    l->block[0] = DRAFT_THREADS;
    l->early = true;
    l = launch_add(ret, names[size][m], &p, sizeof p);
    l->grid[0] = tiles;
    l->grid[1] = turns;
    l->block[0] = Q4_WARPS * 32;
    l->early = true;
}
