/* experts_plan: see launch.h. Products by chains, by integers and of plain matrices have kernels of their own; a table may have all. What
 * is taken of the scratch follows from the sizes alone: the table may be empty when only they are asked for. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/linear/exl3_int.h"
#include "kernels/linear/exl3_int_params.h"
#include "kernels/linear/linear_order.h"
#include "kernels/moe/experts_params.h"

enum {
    ALIGN = 256,
    STATIC_BYTES = 10 << 10, // of shared memory, of the products
    INT_INPUTS =
        2048, // of a row, that a block of experts_int has at most, if so many parts are enough
    INT_SLOTS = 4 * 72, // beyond so many, blocks share no inputs of a gate or up
    INT_BLOCKS = 3,     // of a multiprocessor at once
};

// Matrices of each kind that a table has, and their most bits.
struct kinds {
    bool chains, ints, plain;
    uint32_t chain_half_bits, int_half_bits;
};

static void note(const struct weight *w, struct kinds *ret) {
    if (exl3_int_weight(w)) {
        ret->ints = true;
        ret->int_half_bits = max_u32(ret->int_half_bits, w->exl3.half_bits);
    } else if (w->exl3.half_bits) {
        ret->chains = true;
        ret->chain_half_bits = max_u32(ret->chain_half_bits, w->exl3.half_bits);
    } else {
        ret->plain = true;
    }
}

struct plan {
    struct experts_params p;
    struct kinds kinds[2]; // of gate and up, of down
    const struct cuda_arch *arch;
    struct launch_list *list;
    devptr scratch;
    uint64_t used;
};

static devptr take(struct plan *s, uint64_t bytes) {
    devptr p = s->scratch + s->used;
    s->used = align_up_u64(s->used + bytes, ALIGN);
    return p;
}

static uint32_t segments_of(const struct experts_args *a) {
    return a->dim % EXL3_BLOCK ? 1 : linear_exl3_segments(a->dim);
}

// As many as keep a row's inputs small in shared memory.
static uint32_t int_parts_min(const struct experts_params *p) {
    return min_u32(ceil_div_u32(p->a.dim, INT_INPUTS), EXPERTS_INT_PARTS);
}

// Never less for more rows.
static uint32_t int_slots(const struct experts_params *p) {
    return max_u32(p->picks * int_parts_min(p), min_u32(p->picks * EXPERTS_INT_PARTS, INT_SLOTS));
}

// What both forms take; chains of few rows have more sums.
static void take_sums(struct plan *s) {
    struct experts_params *p = &s->p;
    uint64_t width = p->a.width, n = p->picks;
    uint64_t few = (uint64_t)min_u32(p->a.rows, EXPERTS_FEW_ROWS) * p->per * segments_of(&p->a);
    p->sums = take(s, 2 * max_u64(n, few) * width * sizeof(float));
    p->ints = take(s, 2ull * int_slots(p) * width * sizeof(int32_t));
    p->q_sums = take(s, (2ull * int_slots(p) + n) * sizeof(int32_t));
    p->scales = take(s, 3 * n * sizeof(float));
    p->out = take(s, n * p->a.dim * sizeof(float));
}

static void take_sorted(struct plan *s) {
    struct experts_params *p = &s->p;
    uint64_t n = p->picks, word = sizeof(uint32_t), experts = p->a.count + p->a.shared;
    p->slots = (uint32_t)min_u64(experts, n);
    p->items_max = p->slots + p->picks / p->item_rows;
    p->sorted = take(s, n * word);
    p->owner = take(s, n * word);
    p->place = take(s, n * word);
    p->first = take(s, (experts + 1) * word);
    p->active = take(s, (p->slots + 1ull) * word);
    // As many as with the fewest rows of an item.
    p->items = take(s, (p->slots + n + 1) * sizeof(struct experts_item));
    p->flat = take(s, 3 * n * experts_flat_words(max_u32(p->a.dim, p->a.width)) * word);
    p->lines = take(s, 2 * experts_lines_bytes(n, p->a.dim) + experts_lines_bytes(n, p->a.width));
}

static struct launch *add(struct plan *s, const char *kernel, uint32_t x, uint32_t y, uint32_t z,
                          uint32_t threads) {
    struct launch *l = launch_add(s->list, kernel, &s->p, sizeof s->p);
    l->grid[0] = x;
    l->grid[1] = y;
    l->grid[2] = z;
    l->block[0] = threads;
    l->early = true;
    return l;
}

// Integers

static uint32_t int_ring(const struct kinds *k) {
    return EXPERTS_INT_WARPS * EXL3_INT_RING * exl3_int_item_bytes(k->int_half_bits);
}

static uint32_t int_shared(const struct experts_params *p, const struct kinds *k, bool down) {
    uint32_t columns = p->item_rows <= EXPERTS_INT_ROWS_FEW ? 8 : 16;
    uint32_t row =
        down ? experts_int_row_bytes(p->a.width, 1) : experts_int_row_bytes(p->a.dim, p->parts);
    return int_ring(k) + EXPERTS_INT_WINDOW * experts_int_group_bytes(columns) + p->item_rows * row;
}

// Stages; what finishes a down lies over them.
static uint32_t many_shared(uint32_t rows, uint32_t half_bits) {
    return max_u32(EXPERTS_MANY_STAGES * experts_many_stage(rows, half_bits),
                   rows * (EXL3_BLOCK + 4) * (uint32_t)sizeof(int32_t));
}

// Rows of an item of experts_int_many; 0: experts_int is as good, or it does not fit.
static uint32_t many_rows(const struct plan *s) {
    const struct experts_params *p = &s->p;
    uint32_t each = p->picks / (p->a.count + p->a.shared); // on average, of an expert
    uint32_t most = max_u32(p->a.dim, p->a.width), from = 2;
    uint32_t half_bits = max_u32(s->kinds[0].int_half_bits, s->kinds[1].int_half_bits);
    if (!half_bits || each < from || experts_flat_words(most) > EXPERTS_MANY_FLAT_WORDS) return 0;
    uint32_t rows = each <= 10 ? 16 : each <= 24 ? 32 : 64;
    while (rows > 16 && many_shared(rows, half_bits) + STATIC_BYTES > s->arch->shared_max)
        rows /= 2;
    return rows;
}

/* Blocks that share the inputs of a gate or up. Few rows: two blocks a multiprocessor are enough. Where there are as many without, a
 * block rather has a part of the inputs for all outputs. */
static uint32_t int_parts(const struct plan *s) {
    const struct experts_params *p = &s->p;
    uint32_t most = min_u32(int_slots(p) / p->picks, EXPERTS_INT_PARTS), parts = int_parts_min(p);
    uint32_t tiles = 2 * p->picks * (p->a.width / EXL3_BLOCK), sms = s->arch->sm_count;
    most = min_u32(most, p->a.dim / EXL3_BLOCK);
    if (p->a.rows > EXPERTS_FEW_ROWS || tiles >= 4 * sms) return max_u32(most, 1);
    while (parts < most && tiles * parts < 2 * sms) parts++;
    return max_u32(parts, 1);
}

// How many rows a block takes, and how many blocks share the inputs.
static void plan_ints(struct plan *s) {
    struct experts_params *p = &s->p;
    p->parts = int_parts(s);
    p->item_rows = 1;
    uint32_t most = p->a.rows >= 64 ? EXPERTS_INT_ROWS : min_u32(p->a.rows, EXPERTS_INT_ROWS_FEW);
    while (p->item_rows < most) {
        p->item_rows *= 2;
        uint32_t bytes =
            max_u32(int_shared(p, &s->kinds[0], false), int_shared(p, &s->kinds[1], true));
        if (bytes + STATIC_BYTES <= s->arch->shared_max) continue;
        p->item_rows /= 2;
        break;
    }
}

static void add_ints(struct plan *s, uint32_t items) {
    struct experts_params *p = &s->p;
    const struct kinds *k = &s->kinds[p->down];
    if (!k->ints) return;
    uint32_t blocks = (p->down ? p->a.dim : p->a.width) / EXL3_BLOCK, matrices = p->down ? 1 : 2;
    p->item_bytes = exl3_int_item_bytes(k->int_half_bits);
    if (p->many) {
        const char *kernel = p->many == 16   ? "experts_int_16"
                             : p->many == 32 ? "experts_int_32"
                                             : "experts_int_64";
        add(s, kernel, blocks, items, matrices, EXL3_INT_MANY_THREADS)->shared_bytes =
            many_shared(p->many, k->int_half_bits);
        return;
    }
    // Few rows: so many outputs a block that there still are as many as there is room for at once.
    uint32_t parts = p->down ? 1 : p->parts, some = p->picks * matrices * parts, shares = blocks;
    while (!p->sorted && shares % 2 == 0 && some * shares / 2 >= INT_BLOCKS * s->arch->sm_count)
        shares /= 2;
    struct launch *l =
        add(s, "experts_int", shares * parts, items, matrices, EXPERTS_INT_WARPS * 32);
    l->shared_bytes = int_shared(p, k, p->down);
}

// Few rows

// The blocks of a matrix share its segments as long as there are not enough of them.
static uint32_t few_splits(const struct experts_params *p, uint32_t segments, uint32_t sm_count) {
    uint32_t splits = segments, blocks = 2 * p->picks * (p->a.width / EXL3_BLOCK);
    while (splits > 1 && blocks * splits > 3 * sm_count) splits /= 2;
    return splits;
}

// Shared memory of the chains and of the plain products.
struct few {
    uint64_t chains, plain;
};

// False where the rows do not fit into shared memory.
static bool few_fits(struct plan *s, struct few *ret) {
    enum { RINGS = EXPERTS_FEW_WARPS * EXPERTS_RING };
    struct experts_params *p = &s->p;
    const struct experts_args *a = &p->a;
    uint32_t groups = 0, cols = max_u32(a->dim, a->width);
    p->segments = segments_of(a);
    p->splits = 1;
    if (a->dim % EXL3_BLOCK == 0) {
        p->splits = few_splits(p, p->segments, s->arch->sm_count);
        groups = linear_exl3_groups(a->dim) * ceil_div_u32(p->segments, p->splits) + 2;
    }
    groups = max_u32(min_u32(groups, a->dim / 64), a->width / 64);
    uint64_t rows = (uint64_t)a->rows * groups * 128;
    p->slot_bytes = 64 * max_u32(s->kinds[0].chain_half_bits, s->kinds[1].chain_half_bits);
    ret->plain =
        EXPERTS_FEW_RING_BYTES + a->rows * align_up_u64(cols, EXL3_BLOCK) * 4; // down's may be fp32
    ret->chains = RINGS * p->slot_bytes + rows;
    uint64_t most = RINGS * 64 * EXL3_HALF_BITS_MAX + rows;
    return a->rows <= EXPERTS_FEW_ROWS &&
           max_u64(ret->plain, most) + STATIC_BYTES <= s->arch->shared_max;
}

static void add_few(struct plan *s, const char *kernel, uint32_t x, uint64_t shared) {
    add(s, kernel, x, s->p.picks, s->p.down ? 1 : 2, EXPERTS_FEW_WARPS * 32)->shared_bytes =
        (uint32_t)shared;
}

static void plan_few(struct plan *s, const struct few *f) {
    struct experts_params *p = &s->p;
    take_sums(s);
    for (p->down = 0; p->down < 2; p->down++) {
        const struct kinds *k = &s->kinds[p->down];
        uint32_t shares = ceil_div_u32(p->down ? p->a.dim : p->a.width, EXL3_BLOCK);
        if (k->chains)
            add_few(s, "experts_few_exl3", p->down ? shares : shares * p->splits, f->chains);
        add_ints(s, p->picks);
        if (k->plain)
            add_few(s, "experts_few_plain", p->down ? shares : shares * linear_segments(p->a.dim),
                    f->plain);
    }
}

// Sorted rows

static void add_products(struct plan *s) {
    enum { ROWS = 64, LINE = 128, EXL3_STAGES = 6, SLOTS = 8 * 1024 };
    struct experts_params *p = &s->p;
    const struct kinds *k = &s->kinds[p->down];
    uint32_t matrices = p->down ? 1 : 2, outputs = p->down ? p->a.dim : p->a.width;
    if (k->chains)
        add(s, "experts_exl3", outputs / EXL3_BLOCK, p->slots, matrices, EXPERTS_THREADS)
            ->shared_bytes = EXL3_STAGES * (ROWS * LINE + SLOTS);
    add_ints(s, p->items_max);
    if (k->plain)
        add(s, "experts_plain", ceil_div_u32(outputs, EXPERTS_PLAIN_OUTPUTS), p->slots, matrices,
            EXPERTS_THREADS)
            ->shared_bytes = EXPERTS_PLAIN_STAGES * ((EXPERTS_PLAIN_OUTPUTS + ROWS) * LINE + 8);
}

static void plan_sorted(struct plan *s) {
    struct experts_params *p = &s->p;
    take_sums(s);
    if (p->many) {
        p->parts = 1;
        p->item_rows = p->many;
    }
    take_sorted(s);
    p->segments = p->splits = 1;
    add(s, "experts_sort", 1, 1, 1, EXPERTS_SORT_THREADS)->shared_bytes =
        (p->a.count + p->a.shared) * (uint32_t)sizeof(uint32_t);
    if (s->kinds[0].chains || s->kinds[0].plain || p->many)
        add(s, "experts_spread", p->picks, 2, 1, EXPERTS_THREADS);
    add_products(s);
    if (s->kinds[1].chains || s->kinds[1].plain || p->many)
        add(s, "experts_between", p->picks, 1, 1, EXPERTS_THREADS);
    p->down = 1;
    add_products(s);
}

void experts_plan(const struct experts_args *a, const struct cuda_arch *arch,
                  const struct cuda_work *w, struct launch_list *ret) {
    struct plan s = {.arch = arch, .list = ret, .scratch = w->scratch};
    s.p = (struct experts_params){.a = *a, .per = a->per_token + a->shared, .masks = EXL3_MASKS};
    s.p.picks = a->rows * s.p.per;
    if (!a->rows) return;
    for (uint32_t e = 0; e < a->count + a->shared; e++) {
        note(&a->table[e].gate, &s.kinds[0]);
        note(&a->table[e].up, &s.kinds[0]);
        note(&a->table[e].down, &s.kinds[1]);
    }
    const struct kinds *down = &s.kinds[1];
    struct few f;
    plan_ints(&s);
    bool few = few_fits(&s, &f);
    if (!few) s.p.many = many_rows(&s);
    // The last ones of the down products add up, where these are all of one kernel that can.
    s.p.adds = !down->plain && !(down->ints && down->chains) && (few || (down->ints && !s.p.many));
    s.p.arrived = w->counters;
    ret->counters = a->rows * ceil_div_u32(a->dim, EXL3_BLOCK);
    if (few)
        plan_few(&s, &f);
    else
        plan_sorted(&s);
    s.p.down = 0;
    if (!s.p.adds)
        add(&s, "experts_add", ceil_div_u32(a->dim, EXPERTS_THREADS * 4), a->rows, 1,
            EXPERTS_THREADS);
    ret->scratch_bytes = s.used;
}
