/* experts_plan: see launch.h. Products of EXL3 and of plain matrices have kernels of their own; a table may have both. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/linear/linear_order.h"
#include "kernels/moe/experts_params.h"

enum { ALIGN = 256 };

static devptr take(devptr base, uint64_t *at, uint64_t bytes) {
    devptr p = base + *at;
    *at = align_up_size(*at + bytes, ALIGN);
    return p;
}

static uint64_t lines_bytes(uint64_t n, uint32_t cols) {
    return n * align_up_u64(cols, 64) * 2;
}

static struct experts_params layout(const struct experts_args *a, devptr base,
                                    uint64_t *ret_bytes) {
    struct experts_params p = {.a = *a};
    uint64_t n = (uint64_t)a->rows * a->per_token, at = 0, word = sizeof(uint32_t);
    p.slots = (uint32_t)min_u64(a->count, n);
    p.first = take(base, &at, (a->count + 1ull) * word);
    p.active = take(base, &at, (p.slots + 1ull) * word);
    p.picks = take(base, &at, n * word);
    p.owner = take(base, &at, n * word);
    p.place = take(base, &at, n * word);
    p.lines = take(base, &at, 2 * lines_bytes(n, a->dim) + lines_bytes(n, a->width));
    p.gate = take(base, &at, n * a->width * sizeof(float));
    p.up = take(base, &at, n * a->width * sizeof(float));
    p.out = take(base, &at, n * a->dim * sizeof(float));
    *ret_bytes = at;
    return p;
}

static struct launch *add(struct launch_list *ret, const char *kernel,
                          const struct experts_params *p, uint32_t x, uint32_t y, uint32_t z,
                          uint32_t threads) {
    struct launch *l = launch_add(ret, kernel, p, sizeof *p);
    l->grid[0] = x;
    l->grid[1] = y;
    l->grid[2] = z;
    l->block[0] = threads;
    l->early = true;
    return l;
}

struct kinds {
    bool exl3, plain;
    uint32_t half_bits; // at most
};

static void note(const struct weight *w, struct kinds *ret) {
    ret->half_bits = max_u32(ret->half_bits, w->exl3.half_bits);
    if (w->exl3.half_bits)
        ret->exl3 = true;
    else
        ret->plain = true;
}

// Of all experts, before (gate and up) and after (down).
static void kinds_of(const struct experts_args *a, struct kinds *before, struct kinds *after) {
    for (uint32_t e = 0; e < a->count; e++) {
        note(&a->table[e].gate, before);
        note(&a->table[e].up, before);
        note(&a->table[e].down, after);
    }
}

static struct launch *add_few(struct launch_list *ret, const char *kernel,
                              const struct experts_few_params *p, uint32_t x, uint64_t shared) {
    struct launch *l = launch_add(ret, kernel, p, sizeof *p);
    l->grid[0] = x;
    l->grid[1] = p->a.rows * p->a.per_token;
    l->grid[2] = p->down ? 1 : 2;
    l->block[0] = EXPERTS_FEW_WARPS * 32;
    l->shared_bytes = (uint32_t)shared;
    l->early = true;
    return l;
}

// The blocks of a matrix share its segments as long as there are not enough of them.
static uint32_t few_splits(const struct experts_args *a, uint32_t segments, uint32_t sm_count) {
    uint32_t splits = segments, blocks = 2 * a->rows * a->per_token * (a->width / EXL3_BLOCK);
    while (splits > 1 && blocks * splits > 3 * sm_count) splits /= 2;
    return splits;
}

// False where the rows do not fit into shared memory. That, and what is taken of the scratch, follows from the sizes alone: the
// table may be empty when only they are asked for.
static bool plan_few(const struct experts_args *a, struct kinds before, struct kinds after,
                     const struct cuda_arch *arch, const struct cuda_work *w,
                     struct launch_list *ret) {
    enum { STATIC_BYTES = 9 << 10, RINGS = EXPERTS_FEW_WARPS * EXPERTS_RING };
    uint32_t picks = a->rows * a->per_token, cols = max_u32(a->dim, a->width), groups = 0;
    struct experts_few_params p = {.a = *a, .segments = 1, .splits = 1};
    p.slot_bytes = 64 * max_u32(before.half_bits, after.half_bits);
    if (a->dim % EXL3_BLOCK == 0) {
        p.segments = linear_exl3_segments(a->dim);
        p.splits = few_splits(a, p.segments, arch->sm_count);
        groups = linear_exl3_groups(a->dim) * ceil_div_u32(p.segments, p.splits) + 2;
    }
    groups = max_u32(min_u32(groups, a->dim / 64), a->width / 64);
    uint64_t rows_bytes = a->rows * align_up_u64(cols, EXL3_BLOCK) * 4; // down's may be fp32
    uint64_t plain = EXPERTS_FEW_RING_BYTES + rows_bytes, at = 0;
    uint64_t exl3 = RINGS * p.slot_bytes + (uint64_t)a->rows * groups * 128;
    uint64_t most = RINGS * 64 * EXL3_HALF_BITS_MAX + (uint64_t)a->rows * groups * 128;
    if (a->rows > EXPERTS_FEW_ROWS || max_u64(plain, most) + STATIC_BYTES > arch->shared_max)
        return false;
    p.sums = take(w->scratch, &at, 2ull * p.segments * picks * a->width * sizeof(float));
    p.out = take(w->scratch, &at, (uint64_t)picks * a->dim * sizeof(float));
    ret->scratch_bytes = at;
    for (p.down = 0; p.down < 2; p.down++) {
        struct kinds k = p.down ? after : before;
        uint32_t shares = ceil_div_u32(p.down ? a->dim : a->width, EXL3_BLOCK);
        if (k.exl3) add_few(ret, "experts_few_exl3", &p, p.down ? shares : shares * p.splits, exl3);
        if (k.plain)
            add_few(ret, "experts_few_plain", &p,
                    p.down ? shares : shares * linear_segments(a->dim), plain);
    }
    struct experts_params sum = {.a = *a, .out = p.out};
    add(ret, "experts_add", &sum, ceil_div_u32(a->dim, EXPERTS_THREADS * 4), a->rows, 1,
        EXPERTS_THREADS);
    return true;
}

static void plan_products(struct experts_params *p, struct kinds k, uint32_t outputs,
                          struct launch_list *ret) {
    enum { ROWS = 64, LINE = 128, EXL3_STAGES = 6, SLOTS = 8 * 1024 };
    uint32_t matrices = p->down ? 1 : 2;
    if (k.exl3)
        add(ret, "experts_exl3", p, outputs / EXL3_BLOCK, p->slots, matrices, EXPERTS_THREADS)
            ->shared_bytes = EXL3_STAGES * (ROWS * LINE + SLOTS);
    if (k.plain)
        add(ret, "experts_plain", p, ceil_div_u32(outputs, EXPERTS_PLAIN_OUTPUTS), p->slots,
            matrices, EXPERTS_THREADS)
            ->shared_bytes = EXPERTS_PLAIN_STAGES * ((EXPERTS_PLAIN_OUTPUTS + ROWS) * LINE + 8);
}

void experts_plan(const struct experts_args *a, const struct cuda_arch *arch,
                  const struct cuda_work *w, struct launch_list *ret) {
    uint32_t picks = a->rows * a->per_token;
    if (!picks) return;
    struct kinds before = {0}, after = {0};
    kinds_of(a, &before, &after);
    if (plan_few(a, before, after, arch, w, ret)) return;
    struct experts_params p = layout(a, w->scratch, &ret->scratch_bytes);
    add(ret, "experts_sort", &p, 1, 1, 1, EXPERTS_SORT_THREADS);
    add(ret, "experts_spread", &p, picks, 2, 1, EXPERTS_THREADS);
    plan_products(&p, before, a->width, ret);
    add(ret, "experts_between", &p, picks, 1, 1, EXPERTS_THREADS);
    p.down = 1;
    plan_products(&p, after, a->dim, ret);
    add(ret, "experts_add", &p, ceil_div_u32(a->dim, EXPERTS_THREADS * 4), a->rows, 1,
        EXPERTS_THREADS);
}
