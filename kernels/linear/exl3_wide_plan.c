/* exl3_wide_plan: see exl3_wide.h. Pure, any thread. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/linear/exl3_wide.h"

#include <assert.h>

enum { SHARERS_MAX = 8 };

static uint32_t blocks_of(const struct linear_part *p) {
    return p->w.rows / EXL3_BLOCK;
}

// Even, so that pairs of blocks stay together.
static uint32_t blocks_max(const struct linear_args *a) {
    uint32_t block_bytes = a->parts[0].w.cols * EXL3_BLOCK * (uint32_t)sizeof(uint16_t);
    return max_u32(EXL3_WIDE_BYTES / block_bytes / 2 * 2, 2);
}

bool exl3_wide_next(const struct linear_args *a, struct exl3_wide_slice *at) {
    uint32_t part = at->part, first = at->first, most = blocks_max(a);
    if (at->parts > 1 || at->first + at->count == blocks_of(&a->parts[part])) {
        part += at->parts;
        first = 0;
    } else {
        first += at->count;
    }
    if (part == a->parts_count) return false;
    uint32_t left = blocks_of(&a->parts[part]) - first;
    *at = (struct exl3_wide_slice){part, 1, first, min_u32(left, most)};
    if (first || at->count < left) return true;
    while (part + at->parts < a->parts_count) {
        uint32_t more = blocks_of(&a->parts[part + at->parts]);
        if (at->count + more > most) break;
        at->count += more;
        at->parts++;
    }
    return true;
}

uint32_t exl3_wide_slices(const struct linear_args *a) {
    struct exl3_wide_slice s = {0};
    uint32_t count = 0;
    while (exl3_wide_next(a, &s)) count++;
    return count;
}

uint32_t exl3_wide_blocks(const struct linear_args *a) {
    struct exl3_wide_slice s = {0};
    uint32_t blocks = 0;
    while (exl3_wide_next(a, &s)) blocks = max_u32(blocks, s.count);
    return blocks;
}

static uint32_t pairs_of(const struct cuda_arch *arch) {
    return arch->sm_count / 2;
}

uint32_t exl3_wide_slots(const struct cuda_arch *arch, uint32_t segments) {
    return segments ? pairs_of(arch) / 2 * segments : pairs_of(arch);
}

uint32_t exl3_wide_counters(const struct cuda_arch *arch) {
    return pairs_of(arch) * 2 * EXL3_WIDE_GROUPS;
}

static uint32_t tiles_of(const struct exl3_wide_params *p) {
    uint32_t pairs = 0;
    for (uint32_t i = 0; i < p->slice.parts; i++) {
        uint32_t blocks =
            p->slice.parts == 1 ? p->slice.count : blocks_of(&p->a.parts[p->slice.part + i]);
        pairs += ceil_div_u32(blocks, 2);
    }
    return pairs * ceil_div_u32(p->a.rows, EXL3_WIDE_ROWS);
}

// Of the tiles that are left, each is cut so that about all pairs have something.
void exl3_wide_add(struct exl3_wide_params *p, const char *kernel, uint32_t pieces,
                   const struct cuda_arch *arch, struct launch_list *ret) {
    uint32_t pairs = pairs_of(arch), tiles = tiles_of(p);
    p->whole = tiles / pairs;
    p->rest = tiles % pairs;
    p->shares = p->rest ? min_u32(pairs / p->rest, min_u32(pieces, SHARERS_MAX)) : 0;
    struct launch *l = launch_add(ret, kernel, p, sizeof *p);
    l->grid[0] = 2 * (p->whole ? pairs : p->rest * p->shares);
    l->block[0] = EXL3_WIDE_THREADS;
    l->shared_bytes = EXL3_WIDE_SHARED;
    l->early = true;
}
