/* exl3_int_plan: see exl3_int_plan.h. Rows are rotated in one launch and multiplied in the next. Sums are integers, so the grid may
 * follow the count of multiprocessors. */
#include "kernels/linear/exl3_int_plan.h"
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_int_many.h"
#include "kernels/linear/exl3_int_params.h"
#include "kernels/linear/linear_order.h"
#include "kernels/norm/rmsnorm_order.h"

enum {
    ALIGN = 256,
    RING_ALIGN = 128,
    PLAIN_BLOCKS_MAX = 6, // more outputs are worth launches of their own
    BLOCKS_BESIDE = 2,    // of a multiprocessor, that the work is shared among
    FIXED_BYTES = 1536,   // static shared memory, and more
    SYSTEM_BYTES = 1024   // that each block costs beside its own
};

// Strips of the parts of a width.
static uint32_t find_strips(const struct linear_args *a, uint32_t half_bits, uint32_t teams) {
    uint32_t strips = 0;
    for (uint32_t i = 0; i < a->parts_count; i++) {
        const struct weight *w = &a->parts[i].w;
        if (exl3_int_weight(w) && w->exl3.half_bits == half_bits)
            strips += ceil_div_u32(w->rows, teams * EXL3_BLOCK);
    }
    return strips;
}

static void plan_rows(const struct exl3_int_params *p, struct launch_list *ret) {
    static const char *const names[] = {"exl3_int_rows", "exl3_int_rows_norm",
                                        "exl3_int_rows_swiglu"};
    uint32_t cols = p->a.parts[0].w.cols, warps = EXL3_INT_ROWS_WARPS;
    if (p->a.from.maker == LINEAR_NORM) warps = rmsnorm_threads(cols) / 32;
    struct launch *l = launch_add(ret, names[p->a.from.maker], p, sizeof *p);
    l->grid[0] = ceil_div_u32(cols / EXL3_BLOCK, warps);
    l->grid[1] = p->a.rows;
    l->grid[2] = p->parts;
    l->block[0] = warps * 32;
    l->early = true;
}

// Of all warps.
static uint32_t ring_bytes(uint32_t half_bits, uint32_t teams) {
    return teams * EXL3_INT_TEAM * exl3_int_ring(half_bits) * exl3_int_item_bytes(half_bits);
}

// Where a strip's sums, the sums of q and the count of what was added stand, and how many words that is.
static uint32_t place_sums(struct exl3_int_params *p, uint32_t strips, uint32_t teams) {
    uint32_t sums = strips * p->a.rows * teams * EXL3_BLOCK, q_sums = strips * p->a.rows;
    p->q_sums = p->sums + (uint64_t)sums * sizeof(int32_t);
    p->arrived = p->q_sums + (uint64_t)q_sums * sizeof(int32_t);
    return sums + q_sums + strips;
}

/* The window has all items of a block where there is room; else it has a chunk of the inputs, and chunks are about equal. Two blocks
 * go on a multiprocessor where their rings leave room: then the next call's weights are on their way while this one's are multiplied. */
static void plan_window(struct exl3_int_params *p, uint32_t items, uint32_t ring,
                        uint32_t group_bytes, uint32_t blocks, const struct cuda_arch *arch) {
    uint32_t groups = p->a.parts[0].w.cols / EXL3_INT_GROUP;
    uint32_t share = (arch->shared_max + SYSTEM_BYTES) / blocks - SYSTEM_BYTES - FIXED_BYTES;
    uint32_t all = arch->shared_max - FIXED_BYTES;
    uint32_t room = ((share > ring + 4 * group_bytes ? share : all) - ring) / group_bytes;
    p->chunk = items <= room ? groups : ceil_div_u32(groups, ceil_div_u32(groups, room));
    p->window = items <= room ? items : p->chunk;
}

bool exl3_int_makes(const struct linear_args *a) {
    bool ints = false, chains = false, plain = false;
    for (uint32_t i = 0; i < a->parts_count; i++) {
        const struct weight *w = &a->parts[i].w;
        ints = ints || exl3_int_weight(w);
        chains = chains || exl3_chain_weight(w);
        plain = plain || !w->exl3.half_bits;
    }
    // Blocks of other parts still read the gate, where the rows that other parts want would go.
    bool clash = a->from.maker == LINEAR_SWIGLU && plain;
    return a->rows <= EXL3_INT_ROWS && ints && !chains && !clash;
}

// Blocks that a call's plain parts take beside the products, a warp a segment.
static uint32_t plain_blocks(const struct linear_args *a, uint32_t teams) {
    uint32_t tiles = 0, segments = linear_segments(a->parts[0].w.cols);
    for (uint32_t i = 0; i < a->parts_count; i++)
        if (!a->parts[i].w.exl3.half_bits) tiles += ceil_div_u32(a->parts[i].w.rows, LINEAR_TILE);
    return ceil_div_u32(tiles, teams * EXL3_INT_TEAM / segments);
}

bool exl3_int_takes_plain(const struct linear_args *a) {
    bool ints = false, others = false, any = false;
    for (uint32_t i = 0; i < a->parts_count; i++) {
        const struct weight *w = &a->parts[i].w;
        ints = ints || exl3_int_weight(w);
        any = any || !w->exl3.half_bits;
        others = others || exl3_chain_weight(w) || (!w->exl3.half_bits && w->dtype == DTYPE_F32);
    }
    return a->rows <= EXL3_INT_ROWS_PLAIN && ints && any && !others &&
           plain_blocks(a, EXL3_INT_TEAMS) <= PLAIN_BLOCKS_MAX;
}

// The products of a width. plain: and the plain parts.
static void plan_width(const struct exl3_int_params *all, uint32_t half_bits, bool plain,
                       const struct cuda_arch *arch, struct launch_list *ret) {
#define NAMES(w)                                                                                   \
    { "exl3_int_4_" #w, "exl3_int_8_" #w, "exl3_int_16_" #w }
    static const char *const names[][3] = {NAMES(2),  NAMES(3),  NAMES(4),  NAMES(5),  NAMES(6),
                                           NAMES(7),  NAMES(8),  NAMES(9),  NAMES(10), NAMES(11),
                                           NAMES(12), NAMES(13), NAMES(14), NAMES(15), NAMES(16)};
#undef NAMES
    struct exl3_int_params p = *all;
    uint32_t form = p.a.rows <= EXL3_INT_ROWS_TILE ? 0 : p.a.rows <= 2 * EXL3_INT_ROWS_TILE ? 1 : 2;
    uint32_t teams = EXL3_INT_TEAMS, group_bytes = exl3_int_group_bytes(1 << form);
    uint32_t blocks = form == 2 ? 1 : BLOCKS_BESIDE;
    // Cards with less shared memory: half the warps where the rings of all would not fit.
    if (ring_bytes(half_bits, teams) + 4 * group_bytes + FIXED_BYTES > arch->shared_max) teams /= 2;
    uint32_t strips = find_strips(&p.a, half_bits, teams);
    uint32_t items = strips * (p.a.parts[0].w.cols / EXL3_INT_GROUP);
    uint32_t beside = plain ? plain_blocks(&p.a, teams) : 0;
    uint32_t grid = min_u32(arch->sm_count * blocks - beside, items);
    ret->counters = max_u32(ret->counters, place_sums(&p, strips, teams));
    plan_window(&p, ceil_div_u32(items, grid), ring_bytes(half_bits, teams), group_bytes, blocks,
                arch);
    p.blocks = grid;
    p.items = items / grid;
    p.more = items % grid;
    p.ring_at = (uint32_t)align_up_size((size_t)p.window * group_bytes, RING_ALIGN);
    struct launch *l = launch_add(ret, names[half_bits - EXL3_HALF_BITS_MIN][form], &p, sizeof p);
    l->grid[0] = grid + beside;
    l->block[0] = teams * EXL3_INT_TEAM * 32;
    l->shared_bytes = p.ring_at + ring_bytes(half_bits, teams);
    l->early = true;
}

static void plan_few(const struct linear_args *a, uint32_t parts, const struct cuda_arch *arch,
                     const struct cuda_work *w, uint32_t rows_at, struct launch_list *ret) {
    uint32_t cols = a->parts[0].w.cols;
    uint64_t rotated = align_up_size(ret->scratch_bytes, ALIGN);
    uint64_t sizes = rotated + (uint64_t)parts * a->rows * cols * sizeof(float);
    struct exl3_int_params p = {.a = *a,
                                .rotated = w->scratch + rotated,
                                .sizes = w->scratch + sizes,
                                .sums = w->counters,
                                .parts = parts,
                                .keep_made = parts < a->parts_count};
    ret->scratch_bytes = sizes + (uint64_t)parts * a->rows * (cols / EXL3_BLOCK) * sizeof(uint32_t);
    plan_rows(&p, ret);
    for (uint32_t i = ret->count - 1; i > rows_at; i--) {
        struct launch other = ret->launches[i - 1];
        ret->launches[i - 1] = ret->launches[i];
        ret->launches[i] = other;
    }
    bool plain = exl3_int_takes_plain(a);
    for (uint32_t half_bits = EXL3_HALF_BITS_MIN; half_bits <= EXL3_HALF_BITS_MAX; half_bits++) {
        if (!find_strips(a, half_bits, 1)) continue;
        plan_width(&p, half_bits, plain, arch, ret);
        plain = false; // the first has them
    }
}

void exl3_int_plan(const struct linear_args *a, const struct cuda_arch *arch,
                   const struct cuda_work *w, uint32_t rows_at, struct launch_list *ret) {
    uint32_t parts = 0;
    for (uint32_t i = 0; i < a->parts_count; i++) parts += exl3_int_weight(&a->parts[i].w);
    if (!parts) return;
    if (a->rows > EXL3_INT_ROWS)
        exl3_int_many_plan(a, arch, w, ret);
    else
        plan_few(a, parts, arch, w, rows_at, ret);
}
