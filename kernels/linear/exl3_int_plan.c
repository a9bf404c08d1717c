/* exl3_int_plan: see exl3_int_plan.h. Rows are rotated in one launch and multiplied in the next. Sums are integers, so the grid may
 * follow the count of multiprocessors. */
#include "kernels/linear/exl3_int_plan.h"
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_int_params.h"
#include "kernels/linear/exl3_many.h"

enum {
    ALIGN = 256,
    COLUMNS_FEW = 8, // two a row
    COLUMNS = 16,
    TEAM_THREADS = EXL3_INT_TEAM * 32,
    FIXED_BYTES = 256,   // static shared memory, and more
    SYSTEM_BYTES = 1024, // that each block costs beside its own
};

struct total {
    uint32_t parts, blocks, units;
    uint32_t half_bits; // the widest part's
    bool wide;          // all parts have outputs for whole sets of teams
};

static struct total find_total(const struct linear_args *a) {
    struct total t = {.wide = true};
    for (uint32_t i = 0; i < a->parts_count; i++) {
        const struct weight *w = &a->parts[i].w;
        if (!exl3_int_weight(w)) continue;
        t.parts++;
        t.blocks += w->rows / EXL3_BLOCK;
        t.units += w->rows / EXL3_BLOCK * (w->cols / EXL3_INT_GROUP);
        t.half_bits = max_u32(t.half_bits, w->exl3.half_bits);
        if (w->rows % (EXL3_INT_TEAMS * EXL3_BLOCK)) t.wide = false;
    }
    return t;
}

static void plan_rotate(const struct exl3_int_params *p, const struct total *t,
                        struct launch_list *ret) {
    struct launch *l = launch_add(ret, "exl3_int_rotate", p, sizeof *p);
    l->grid[0] = ceil_div_u32(p->a.parts[0].w.cols / EXL3_BLOCK, EXL3_INT_ROTATE_WARPS);
    l->grid[1] = p->a.rows;
    l->grid[2] = t->parts;
    l->block[0] = EXL3_INT_ROTATE_WARPS * 32;
    l->early = true;
}

/* Groups that a block needs at most: of its units, with its teams side by side where that is always so, and a part of one at each end;
 * as many as fit into what is left beside the rings. Two blocks go on a multiprocessor where that leaves room: then the next
 * call's weights are on their way while this one's are multiplied. */
static uint32_t window(const struct total *t, uint32_t units, uint32_t groups, uint32_t group_bytes,
                       uint32_t ring_bytes, const struct cuda_arch *arch) {
    uint32_t want = min_u32(groups, (t->wide ? units / EXL3_INT_TEAMS : units) + 3);
    uint32_t half = (arch->shared_max + SYSTEM_BYTES) / 2 - SYSTEM_BYTES - FIXED_BYTES;
    uint32_t all = arch->shared_max - FIXED_BYTES;
    uint32_t room = (half > ring_bytes + 8 * group_bytes ? half : all) - ring_bytes;
    return min_u32(want, room / group_bytes);
}

void exl3_int_plan(const struct linear_args *a, const struct cuda_arch *arch,
                   const struct cuda_work *w, struct launch_list *ret) {
    struct total t = find_total(a);
    uint32_t cols = a->parts[0].w.cols, groups = cols / EXL3_INT_GROUP;
    if (!t.parts) return;
    if (a->rows > EXL3_INT_ROWS) {
        exl3_many_plan(a, arch, w, ret);
        return;
    }
    bool few = a->rows <= EXL3_INT_ROWS_FEW, own = a->rows > EXL3_INT_ROWS;
    uint32_t grid = own ? min_u32(arch->sm_count, ceil_div_u32(t.blocks, EXL3_INT_TEAMS))
                        : min_u32(arch->sm_count, ceil_div_u32(t.units, EXL3_INT_TEAMS));
    uint32_t places = own ? grid * EXL3_INT_TEAMS : t.blocks, rows = own ? EXL3_INT_ROWS : a->rows;
    uint64_t rotated = align_up_size(ret->scratch_bytes, ALIGN);
    uint64_t sizes = rotated + (uint64_t)t.parts * a->rows * cols * sizeof(float);
    struct exl3_int_params p = {
        .a = *a, .rotated = w->scratch + rotated, .sizes = w->scratch + sizes, .sums = w->counters};
    p.q_sums = p.sums + (uint64_t)places * rows * EXL3_BLOCK * sizeof(int32_t);
    p.arrived = p.q_sums + (uint64_t)places * rows * sizeof(int32_t);
    ret->scratch_bytes =
        sizes + (uint64_t)t.parts * a->rows * (cols / EXL3_BLOCK) * sizeof(uint32_t);
    ret->counters = max_u32(ret->counters, places * (rows * (EXL3_BLOCK + 1) + 1));
    plan_rotate(&p, &t, ret);

    // Cards with less shared memory: half the warps where the rings of all would not fit.
    uint32_t group_bytes = exl3_int_group_bytes(few ? COLUMNS_FEW : COLUMNS),
             teams = EXL3_INT_TEAMS;
    uint32_t ring = EXL3_INT_TEAM * EXL3_INT_RING * exl3_int_unit_bytes(t.half_bits);
    while (teams > 2 && teams * ring + 4 * group_bytes + FIXED_BYTES > arch->shared_max) teams /= 2;
    if (teams < EXL3_INT_TEAMS) t.wide = false;
    p.window = window(&t, own ? t.units : ceil_div_u32(t.units, grid), groups, group_bytes,
                      teams * ring, arch);
    struct launch *l = launch_add(ret, few ? "exl3_int_4" : "exl3_int_8", &p, sizeof p);
    l->grid[0] = grid;
    l->block[0] = teams * TEAM_THREADS;
    l->shared_bytes = p.window * group_bytes + teams * ring;
    l->early = true;
}
