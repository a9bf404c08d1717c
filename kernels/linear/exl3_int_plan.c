/* exl3_int_plan: see exl3_int_plan.h. Rows are rotated in one launch and multiplied in the next. Sums are integers, so the grid may
 * follow the count of multiprocessors. */
#include "kernels/linear/exl3_int_plan.h"
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_int_many.h"
#include "kernels/linear/exl3_int_params.h"

enum {
    ALIGN = 256,
    COLUMNS_FEW = 8, // two a row
    COLUMNS = 16,
    BLOCKS_BESIDE = 2,  // of a multiprocessor, that the work is shared among
    FIXED_BYTES = 512,  // static shared memory, and more
    SYSTEM_BYTES = 1024 // that each block costs beside its own
};

struct total {
    uint32_t parts, strips, items;
    uint32_t half_bits; // the widest part's
};

static struct total find_total(const struct linear_args *a, uint32_t teams) {
    struct total t = {0};
    for (uint32_t i = 0; i < a->parts_count; i++) {
        const struct weight *w = &a->parts[i].w;
        if (!exl3_int_weight(w)) continue;
        uint32_t strips = ceil_div_u32(w->rows, teams * EXL3_BLOCK);
        t.parts++;
        t.strips += strips;
        t.items += strips * (w->cols / EXL3_INT_GROUP);
        t.half_bits = max_u32(t.half_bits, w->exl3.half_bits);
    }
    return t;
}

static void plan_rotate(const struct exl3_int_params *p, struct launch_list *ret) {
    struct launch *l = launch_add(ret, "exl3_int_rotate", p, sizeof *p);
    l->grid[0] = ceil_div_u32(p->a.parts[0].w.cols / EXL3_BLOCK, EXL3_INT_ROTATE_WARPS);
    l->grid[1] = p->a.rows;
    l->grid[2] = p->parts;
    l->block[0] = EXL3_INT_ROTATE_WARPS * 32;
    l->early = true;
}

// Of all warps.
static uint32_t ring_bytes(uint32_t half_bits, uint32_t teams) {
    return teams * EXL3_INT_TEAM * EXL3_INT_RING * exl3_int_item_bytes(half_bits);
}

// Where a strip's sums, the sums of q, and the count of what was added stand, and how many words that is.
static uint32_t place_sums(struct exl3_int_params *p, uint32_t places, uint32_t rows,
                           uint32_t teams, devptr counters) {
    uint32_t sums = places * rows * teams * EXL3_BLOCK, q_sums = places * rows;
    p->sums = counters;
    p->q_sums = p->sums + (uint64_t)sums * sizeof(int32_t);
    p->arrived = p->q_sums + (uint64_t)q_sums * sizeof(int32_t);
    return sums + q_sums + places;
}

/* The window has all items of a block where there is room; else it has a chunk of the inputs, and chunks are about equal. Two blocks
 * go on a multiprocessor where their rings leave room: then the next call's weights are on their way while this one's are multiplied. */
static void plan_window(struct exl3_int_params *p, uint32_t items, uint32_t ring,
                        uint32_t group_bytes, const struct cuda_arch *arch) {
    uint32_t groups = p->a.parts[0].w.cols / EXL3_INT_GROUP;
    uint32_t half = (arch->shared_max + SYSTEM_BYTES) / 2 - SYSTEM_BYTES - FIXED_BYTES;
    uint32_t all = arch->shared_max - FIXED_BYTES;
    uint32_t room = ((half > ring + 4 * group_bytes ? half : all) - ring) / group_bytes;
    p->chunk = items <= room ? groups : ceil_div_u32(groups, ceil_div_u32(groups, room));
    p->window = items <= room ? items : p->chunk;
}

void exl3_int_plan(const struct linear_args *a, const struct cuda_arch *arch,
                   const struct cuda_work *w, struct launch_list *ret) {
    if (a->rows > EXL3_INT_ROWS) {
        exl3_int_many_plan(a, arch, w, ret);
        return;
    }
    bool few = a->rows <= EXL3_INT_ROWS_FEW, own = a->rows > EXL3_INT_ROWS;
    uint32_t group_bytes = exl3_int_group_bytes(few ? COLUMNS_FEW : COLUMNS);
    uint32_t teams = EXL3_INT_TEAMS, cols = a->parts[0].w.cols;
    struct total t = find_total(a, teams);
    if (!t.parts) return;
    // Cards with less shared memory: half the warps where the rings of all would not fit.
    if (ring_bytes(t.half_bits, teams) + 4 * group_bytes + FIXED_BYTES > arch->shared_max)
        teams /= 2;
    t = find_total(a, teams);
    uint32_t grid = min_u32(arch->sm_count * BLOCKS_BESIDE, own ? t.strips : t.items);

    uint64_t rotated = align_up_size(ret->scratch_bytes, ALIGN);
    uint64_t sizes = rotated + (uint64_t)t.parts * a->rows * cols * sizeof(float);
    struct exl3_int_params p = {
        .a = *a, .rotated = w->scratch + rotated, .sizes = w->scratch + sizes};
    ret->scratch_bytes =
        sizes + (uint64_t)t.parts * a->rows * (cols / EXL3_BLOCK) * sizeof(uint32_t);
    uint32_t words =
        place_sums(&p, own ? grid : t.strips, own ? EXL3_INT_ROWS : a->rows, teams, w->counters);
    ret->counters = max_u32(ret->counters, words);
    plan_window(&p, own ? t.items : ceil_div_u32(t.items, grid), ring_bytes(t.half_bits, teams),
                group_bytes, arch);
    p.items = t.items / grid;
    p.more = t.items % grid;
    p.parts = t.parts;
    p.item_bytes = exl3_int_item_bytes(t.half_bits);
    plan_rotate(&p, ret);
    struct launch *l = launch_add(ret, few ? "exl3_int_4" : "exl3_int_8", &p, sizeof p);
    l->grid[0] = grid;
    l->block[0] = teams * EXL3_INT_TEAM * 32;
    l->shared_bytes = p.window * group_bytes + ring_bytes(t.half_bits, teams);
    l->early = true;
}
