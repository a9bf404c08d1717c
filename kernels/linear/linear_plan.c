/* linear_plan: see launch.h. The plain parts first (linear_plain_plan.c), then the EXL3 ones with chains, then those with
 * integers (exl3_int_plan.c). The rows of a block change no bit. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/linear/exl3_few.h"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_int_plan.h"
#include "kernels/linear/exl3_many.h"
#include "kernels/linear/exl3_params.h"
#include "kernels/linear/exl3_wide.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_from.h"
#include "kernels/linear/linear_order.h"
#include "kernels/linear/linear_params.h"

#include <assert.h>

enum {
    FEW_ROWS = 8,
    MANY_ROWS = 32,
    WIDE_ROWS = 257, // from which weights are written out first: measured
    ROTATE_WARPS = 4,
    ALIGN = 256
};
// So many turns of 128 inputs a block of exl3_few rotates itself; more are faster done once for all blocks.
enum { FEW_ROTATIONS = EXL3_FEW_NORMS };
enum { FEW_STATIC_BYTES = 1024, FEW_WARPS_MIN = 16 };

// The EXL3 parts of a call that have chains.
struct exl3_sizes {
    uint32_t parts, cols, blocks; // blocks: of 128 outputs
    uint32_t half_bits_max;
};

static struct exl3_sizes exl3_sizes(const struct linear_args *a) {
    struct exl3_sizes ret = {.cols = a->parts[0].w.cols};
    for (uint32_t i = 0; i < a->parts_count; i++) {
        const struct weight *w = &a->parts[i].w;
        if (!exl3_chain_weight(w)) continue;
        assert(!w->exl3.rows_whole); // ops.exl3_views is false
        ret.blocks += w->rows / EXL3_BLOCK;
        ret.half_bits_max = max_u32(ret.half_bits_max, w->exl3.half_bits);
        ret.parts++;
    }
    return ret;
}

// Rotated rows, at the beginning of scratch.
static void plan_rotate(const struct exl3_sizes *s, const struct exl3_params *p,
                        struct launch_list *ret) {
    ret->scratch_bytes =
        align_up_size((uint64_t)s->parts * p->a.rows * s->cols * sizeof(uint16_t), ALIGN);
    struct launch *l = launch_add(ret, "exl3_rotate_rows", p, sizeof *p);
    l->grid[0] = ceil_div_u32(s->cols / EXL3_BLOCK, ROTATE_WARPS);
    l->grid[1] = p->a.rows;
    l->grid[2] = s->parts;
    l->block[0] = ROTATE_WARPS * 32;
    l->early = true;
}

// Blocks of 128 inputs that a block's rows have at a time.
static uint32_t few_blocks(const struct exl3_sizes *s, const struct exl3_params *p) {
    return min_u32(p->groups * p->chain, s->cols / EXL3_GROUP) / 2;
}

// Bytes of a block's shared memory, with the chain and the buffers of p.
static uint32_t few_shared(const struct exl3_sizes *s, uint32_t tiles, uint32_t warps,
                           struct exl3_params *p) {
    p->rows_bytes = few_blocks(s, p) * 2 * p->a.rows * EXL3_GROUP_BYTES;
    p->rows_bytes += tiles * EXL3_STEP_ROWS * EXL3_GROUP_BYTES; // rows that nobody has are read too
    uint32_t ring = EXL3_RING * EXL3_BLOCK * s->half_bits_max;
    return max_u32(p->buffers * p->rows_bytes + warps * ring, EXL3_FEW_SHARES);
}

/* A chain of all segments spares the sums' way through memory. It wants many outputs, so that every warp has several tiles, and
 * the rows of all of K in shared memory. */
static uint32_t few_chain(const struct exl3_sizes *s, const struct cuda_arch *arch, uint32_t tiles,
                          uint32_t warps, struct exl3_params *p) {
    uint32_t shared = UINT32_MAX;
    if (s->blocks * LINEAR_WARPS >= arch->sm_count * warps * 3) {
        p->chain = p->segments;
        p->buffers = 1;
        shared = few_shared(s, tiles, warps, p);
    }
    for (uint32_t buffers = 2; buffers && shared > arch->shared_max - FEW_STATIC_BYTES; buffers--) {
        p->chain = 1;
        p->buffers = buffers;
        shared = few_shared(s, tiles, warps, p);
    }
    return shared;
}

// Equal turns for all warps.
static uint32_t few_warps(uint32_t units, uint32_t most) {
    return ceil_div_u32(units, ceil_div_u32(units, most));
}

static uint32_t few_tiles(uint32_t rows) {
    return rows <= 8 ? 1 : rows <= 16 ? 2 : 4;
}

struct few_shape {
    uint32_t warps, shared_bytes; // of a block
};

// The shape of exl3_few, with as many warps as have room for their rings; false where it does not fit.
static bool few_fits(const struct exl3_sizes *s, const struct cuda_arch *arch,
                     struct exl3_params *p, struct few_shape *ret) {
    uint32_t tiles = few_tiles(p->a.rows), room = arch->shared_max - FEW_STATIC_BYTES;
    if (p->a.rows > 32) return false;
    for (uint32_t warps = exl3_few_warps(tiles); warps >= FEW_WARPS_MIN; warps -= 4) {
        *ret = (struct few_shape){warps, few_chain(s, arch, tiles, warps, p)};
        if (ret->shared_bytes <= room) break;
    }
    p->rotates = few_blocks(s, p) * p->a.rows <= FEW_ROTATIONS;
    return ret->shared_bytes <= room;
}

static bool plan_few(const struct exl3_sizes *s, const struct cuda_arch *arch,
                     struct exl3_params *p, struct launch_list *ret) {
    static const char *const names[] = {NULL, "exl3_few_8", "exl3_few_16", NULL, "exl3_few_32"};
    struct few_shape shape;
    if (!few_fits(s, arch, p, &shape)) return false;
    uint32_t chunks = p->segments / p->chain;
    p->units = s->blocks * LINEAR_WARPS * chunks;
    if (!p->rotates) plan_rotate(s, p, ret);
    p->sums = p->rotated + ret->scratch_bytes;
    ret->scratch_bytes += (uint64_t)s->blocks * EXL3_BLOCK * chunks * p->a.rows * sizeof(float);
    ret->counters = s->blocks;
    struct launch *l = launch_add(ret, names[few_tiles(p->a.rows)], p, sizeof *p);
    l->grid[0] = min_u32(arch->sm_count, p->units);
    l->block[0] = few_warps(ceil_div_u32(p->units, l->grid[0]), shape.warps) * 32;
    l->shared_bytes = shape.shared_bytes;
    l->early = true;
    return true;
}

// Every block keeps a slot for each segment, for tiles that it shares with others.
static bool plan_many(const struct exl3_sizes *s, const struct cuda_arch *arch,
                      struct exl3_params *p, struct launch_list *ret) {
    uint32_t rows = p->a.rows <= 64 ? 64 : 128;
    if (arch->sm != 90) return false;
    plan_rotate(s, p, ret);
    uint32_t tiles = s->blocks * ceil_div_u32(p->a.rows, rows);
    p->units = tiles * p->segments;
    p->sums = p->rotated + ret->scratch_bytes;
    ret->counters = tiles;
    struct launch *l = launch_add(ret, rows == 64 ? "exl3_many_64" : "exl3_many_128", p, sizeof *p);
    l->grid[0] = min_u32(arch->sm_count, p->units);
    l->block[0] = EXL3_MANY_THREADS;
    l->shared_bytes = exl3_many_shared(rows, s->half_bits_max);
    l->early = true;
    ret->scratch_bytes += (uint64_t)l->grid[0] * p->segments * rows * EXL3_BLOCK * sizeof(float);
    return true;
}

static struct exl3_params exl3_params_of(const struct linear_args *a, const struct exl3_sizes *s,
                                         const struct cuda_work *w) {
    return (struct exl3_params){.a = *a,
                                .rotated = w->scratch,
                                .counters = w->counters,
                                .segments = linear_exl3_segments(s->cols),
                                .groups = linear_exl3_groups(s->cols),
                                .half_bits_max = s->half_bits_max,
                                .masks = EXL3_MASKS};
}

// Whether exl3_few makes the rows of a call, all of whose parts have chains.
static bool exl3_makes(const struct linear_args *a, const struct cuda_arch *arch) {
    static const struct cuda_work none;
    struct exl3_sizes s = exl3_sizes(a);
    struct few_shape shape;
    if (s.parts != a->parts_count) return false;
    struct exl3_params p = exl3_params_of(a, &s, &none);
    return few_fits(&s, arch, &p, &shape) && p.rotates;
}

// The parts that have chains, alone.
static struct linear_args chains_of(const struct linear_args *a) {
    struct linear_args ret = {.x = a->x, .rows = a->rows};
    for (uint32_t i = 0; i < a->parts_count; i++)
        if (exl3_chain_weight(&a->parts[i].w)) ret.parts[ret.parts_count++] = a->parts[i];
    return ret;
}

static devptr take(struct exl3_params *p, uint64_t bytes, struct launch_list *ret) {
    devptr at = p->rotated + ret->scratch_bytes;
    ret->scratch_bytes += align_up_u64(bytes, ALIGN);
    return at;
}

// Weights are written out, slice by slice, and multiplied.
static bool plan_wide(const struct exl3_sizes *s, const struct cuda_arch *arch,
                      struct exl3_params *p, struct launch_list *ret) {
    struct exl3_wide_params w = {.a = chains_of(&p->a),
                                 .stride = p->a.rows,
                                 .segments = p->segments,
                                 .groups = p->groups,
                                 .masks = p->masks,
                                 .q = p->rotated,
                                 .counters = p->counters};
    if (arch->sm != 90 || p->a.rows < WIDE_ROWS) return false;
    if (ret->count + 1 + 2 * exl3_wide_slices(&w.a) > LAUNCHES_MAX) return false;
    plan_rotate(s, p, ret);
    w.sums = take(p, (uint64_t)exl3_wide_slots(arch, p->segments) * 2 * EXL3_WIDE_SUMS * 4, ret);
    w.wide = take(p, (uint64_t)exl3_wide_blocks(&w.a) * s->cols * EXL3_BLOCK * 2, ret);
    ret->counters = exl3_wide_counters(arch);
    while (exl3_wide_next(&w.a, &w.slice)) {
        struct launch *l = launch_add(ret, "exl3_wide_expand", &w, sizeof w);
        l->grid[0] = s->cols / EXL3_BLOCK;
        l->grid[1] = w.slice.count;
        l->block[0] = EXL3_WIDE_EXPAND_THREADS;
        l->shared_bytes = EXL3_WIDE_EXPAND_BYTES;
        l->early = true;
        exl3_wide_add(&w, "exl3_wide_chain", w.segments, arch, ret);
    }
    return true;
}

static void plan_exl3(const struct linear_args *a, const struct cuda_arch *arch,
                      const struct cuda_work *w, struct launch_list *ret) {
    struct exl3_sizes s = exl3_sizes(a);
    if (!s.parts) return;
    ret->scratch_bytes = 0; // the plain parts are done with theirs
    struct exl3_params p = exl3_params_of(a, &s, w);
    if (plan_wide(&s, arch, &p, ret) || plan_few(&s, arch, &p, ret) || plan_many(&s, arch, &p, ret))
        return;
    plan_rotate(&s, &p, ret);
    uint32_t rows = a->rows <= FEW_ROWS ? FEW_ROWS : MANY_ROWS;
    struct launch *l = launch_add(ret, rows == FEW_ROWS ? "exl3_8" : "exl3_32", &p, sizeof p);
    l->grid[0] = s.blocks;
    l->grid[1] = ceil_div_u32(a->rows, rows);
    l->block[0] = LINEAR_WARPS * min_u32(linear_exl3_segments(s.cols), LINEAR_SEGMENTS_BESIDE) * 32;
    l->early = true;
}

// The call's rows by a launch of their own, where no other one makes them.
static void plan_from(struct linear_args *a, const struct cuda_arch *arch,
                      const struct cuda_work *w, struct launch_list *ret) {
    struct rmsnorm_args norm = linear_from_norm(a);
    struct swiglu_args swiglu = linear_from_swiglu(a);
    if (a->from.maker == LINEAR_NORM) rmsnorm_plan(&norm, arch, w, ret);
    if (a->from.maker == LINEAR_SWIGLU) swiglu_plan(&swiglu, arch, w, ret);
    a->from.maker = LINEAR_AS_IT_IS;
}

void linear_plan(const struct linear_args *args, const struct cuda_arch *arch,
                 const struct cuda_work *w, struct launch_list *ret) {
    struct linear_args a = *args;
    if (!a.rows) return;
    if (!exl3_int_makes(&a) && !exl3_makes(&a, arch)) plan_from(&a, arch, w, ret);
    uint32_t made = ret->count;
    if (!exl3_int_takes_plain(&a)) linear_plain_plan(&a, arch, w, ret);
    uint64_t plain_bytes = ret->scratch_bytes;
    plan_exl3(&a, arch, w, ret);
    ret->scratch_bytes = max_u64(ret->scratch_bytes, plain_bytes);
    exl3_int_plan(&a, arch, w, made, ret);
}
