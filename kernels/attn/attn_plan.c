/* attn_plan: see launch.h. Which form serves which rows; none of it changes a bit. */
#include "common/num.h"
#include "kernels/attn/attn.h"
#include "kernels/attn/attn_params.h"
#include "kernels/attn/kv_order.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"

#include <assert.h>
#include <stdbool.h>

enum {
    DIM_STEP = 16,
    SPLIT_DIM = 256, // what attn_split and attn_rows are compiled for
    SPLIT_THREADS = 288,
    COLS_MAX = 48,
    ROWS_THREADS = 384,
    FEW_QUERIES =
        8, // of a run that attn_split takes where there is attn_rows, whose tiles then cost less
    // Scratch for parts of contexts, at most; with less, spans are longer. Chips with attn_rows have much memory.
    PARTS_BYTES_MAX = 64 << 20,
    ROWS_PARTS_BYTES_MAX = 192 << 20,
    COUNTERS_MAX = 16384,
    TWO_BLOCKS_SHARED =
        200 << 10, // a multiprocessor with so much has room for two blocks of few queries
    BLOCK_RESERVED = 1 << 10,
    // Floats of the plain form beside its rows: scores, classes' sums, levels' maxima and sums, factors, and one that pads.
    PLAIN_FIXED = ATTN_QUERIES * (ATTN_TILE + 4 + 6 + 2) + 1,
    PLAIN_ROWS = 4, // of a query: itself, values of chunk, group and all
};

static const char *plain_of(enum dtype d) {
    switch (d) {
    case DTYPE_BF16: return "attn_bf16";
    case DTYPE_E4M3: return "attn_e4m3";
    default: assert(d == DTYPE_F32); return "attn_f32";
    }
}

static void plan_plain(const struct attn_args *a, struct launch_list *ret) {
    struct launch *l = launch_add(ret, plain_of(a->kv.dtype), a, sizeof *a);
    l->grid[0] = a->rows.count;
    l->grid[1] = a->kv.heads;
    l->grid[2] = ceil_div_u32(a->heads / a->kv.heads, ATTN_QUERIES);
    l->block[0] = 128;
    l->shared_bytes = (PLAIN_FIXED + PLAIN_ROWS * ATTN_QUERIES * a->kv.dim) * sizeof(float);
    l->early = true;
}

static const char *split_of(enum dtype d, uint32_t cols) {
    bool half = d == DTYPE_BF16;
    switch (cols) {
    case 8: return half ? "attn_split_bf16_256_8" : "attn_split_e4m3_256_8";
    case 24: return half ? "attn_split_bf16_256_24" : "attn_split_e4m3_256_24";
    default: return half ? "attn_split_bf16_256_48" : "attn_split_e4m3_256_48";
    }
}

// The ring's stages: what shared memory holds beside cols queries. One block a multiprocessor: a long ring keeps it as busy as two.
static uint32_t stages_of(const struct cuda_arch *arch, uint32_t cols) {
    uint32_t fixed = ATTN_SPLIT_SHARED(SPLIT_DIM, cols);
    if (arch->shared_max < fixed) return 0;
    return min_u32((arch->shared_max - fixed) / ATTN_STAGE_BYTES, ATTN_SPLIT_STAGES_MAX);
}

static uint32_t stages_min(enum dtype d) { // keys and values of a tile
    return 2 * SPLIT_DIM * dtype_bytes(d) * ATTN_TILE / ATTN_STAGE_BYTES;
}

static void plan_split(const struct attn_params *p, const struct cuda_arch *arch, uint32_t rows,
                       uint32_t units_max, struct launch_list *ret) {
    struct attn_params q = *p;
    uint32_t queries = rows * (p->a.heads / p->a.kv.heads);
    uint32_t cols = queries <= 8 ? 8 : queries <= 24 ? 24 : COLS_MAX;
    if (cols == COLS_MAX && stages_of(arch, cols) < stages_min(p->a.kv.dtype)) cols = 24;
    q.stages = stages_of(arch, cols);
    struct launch *l = launch_add(ret, split_of(p->a.kv.dtype, cols), &q, sizeof q);
    l->grid[0] = min_u32(arch->sm_count, units_max);
    l->block[0] = SPLIT_THREADS;
    l->shared_bytes = q.stages * ATTN_STAGE_BYTES + ATTN_SPLIT_SHARED(SPLIT_DIM, cols);
    l->early = true;
}

static bool has_rows(const struct cuda_arch *arch) {
    return arch->sm == 90;
}

static void plan_rows(const struct attn_params *p, const struct cuda_arch *arch, uint32_t units_max,
                      struct launch_list *ret) {
    bool half = p->a.kv.dtype == DTYPE_BF16;
    struct launch *l =
        launch_add(ret, half ? "attn_rows_bf16_sm90" : "attn_rows_e4m3_sm90", p, sizeof *p);
    l->grid[0] = min_u32(arch->sm_count, units_max);
    l->block[0] = ROWS_THREADS;
    l->shared_bytes = ATTN_ROWS_SHARED + (half ? 0 : ATTN_ROWS_RAW);
    l->early = true;
}

// Sizes grow with the rows, whatever runs they make: the largest call has room for all others.
static void plan_units(const struct attn_args *a, const struct cuda_arch *arch,
                       const struct cuda_work *w, struct launch_list *ret) {
    uint32_t group = a->heads / a->kv.heads, pages = max_u32(a->kv.pages_per_slot, 1);
    uint32_t chunks = attn_chunk_of(pages - 1) + 1, groups = ceil_div_u32(pages, ATTN_GROUP_TILES);
    uint64_t heads = (uint64_t)a->rows.count * a->kv.heads, units_max = heads * chunks;
    uint64_t bytes = (uint64_t)group * (a->kv.dim + 2) * sizeof(float); // of an entry
    uint64_t parts_max = has_rows(arch) ? ROWS_PARTS_BYTES_MAX : PARTS_BYTES_MAX;
    struct attn_params p = {.a = *a, .scratch = w->scratch, .counters = w->counters};
    p.entries = (uint32_t)min_u64(heads * (chunks + groups), parts_max / bytes);
    p.counters_count = ATTN_COUNTERS_FIXED + (uint32_t)min_u64(heads * (groups + 1), COUNTERS_MAX);
    p.few = has_rows(arch) ? max_u32(FEW_QUERIES / group, 1) : UINT32_MAX;
    ret->scratch_bytes = p.entries * bytes;
    ret->counters = p.counters_count;
    uint32_t runs = max_u32(a->rows.runs_count, 1);
    uint32_t longest = a->rows.count - runs + 1; // of the runs, at most
    units_max = min_u64(units_max, UINT32_MAX);
    if (runs > 1 || longest <= p.few)
        plan_split(&p, arch, min_u32(longest, p.few), (uint32_t)units_max, ret);
    if (!has_rows(arch)) return;
    p.levels = p.scratch + ret->scratch_bytes / 256 * 256 + 256;
    if (a->rows.count > p.few)
        ret->scratch_bytes +=
            256 + (uint64_t)arch->sm_count * (ATTN_ROWS_LEVELS_BYTES + ATTN_ROWS_SUMS_BYTES);
    if (longest > p.few) plan_rows(&p, arch, (uint32_t)units_max, ret);
}

void attn_plan(const struct attn_args *a, const struct cuda_arch *arch, const struct cuda_work *w,
               struct launch_list *ret) {
    assert(a->kv.dim <= KV_DIM_MAX && a->kv.dim % DIM_STEP == 0 && a->heads % a->kv.heads == 0);
    if (!a->rows.count) return;
    if (a->kv.dtype == DTYPE_F32 || a->kv.dim != SPLIT_DIM || a->heads / a->kv.heads > COLS_MAX)
        plan_plain(a, ret);
    else
        plan_units(a, arch, w, ret);
}
