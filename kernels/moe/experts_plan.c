/* experts_plan: see launch.h. What the experts are made of stands in their table on the device, so the launches are the same for
 * all kinds; a kernel that has nothing to do ends at once. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/linear/linear_order.h"
#include "kernels/mlp/swiglu.h"
#include "kernels/moe/experts_params.h"

enum { ALIGN = 256, FEW_ROWS = 8, ADD_THREADS = 256 };

static devptr take(devptr base, uint64_t *at, uint64_t bytes) {
    devptr p = base + *at;
    *at = align_up_size(*at + bytes, ALIGN);
    return p;
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
    p.rotated = take(base, &at, n * (2ull * a->dim + a->width) * sizeof(uint16_t));
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
    return l;
}

void experts_plan(const struct experts_args *a, const struct cuda_arch *arch,
                  const struct cuda_work *w, struct launch_list *ret) {
    uint32_t picks = a->rows * a->per_token, threads = LINEAR_WARPS * 32;
    if (!picks) return;
    struct experts_params p = layout(a, w->scratch, &ret->scratch_bytes);
    bool few = a->rows <= FEW_ROWS;
    add(ret, "experts_sort", &p, 1, 1, 1, EXPERTS_SORT_THREADS);
    if (a->dim % EXL3_BLOCK == 0 && a->width % EXL3_BLOCK == 0)
        add(ret, "experts_rotate", &p, picks, a->dim / EXL3_BLOCK, 2, 32);
    add(ret, few ? "experts_up_8" : "experts_up_32", &p, ceil_div_u32(a->width, EXPERTS_COLUMNS),
        p.slots, 2, threads);
    swiglu_plan(
        &(struct swiglu_args){
            .gate = p.gate, .up = p.up, .y = p.gate, .rows = picks, .dim = a->width},
        arch, w, ret);
    if (a->dim % EXL3_BLOCK == 0 && a->width % EXL3_BLOCK == 0)
        add(ret, "experts_rotate_down", &p, picks, a->width / EXL3_BLOCK, 1, 32);
    add(ret, few ? "experts_down_8" : "experts_down_32", &p, ceil_div_u32(a->dim, EXPERTS_COLUMNS),
        p.slots, 1, threads);
    add(ret, "experts_add", &p, ceil_div_u32(a->dim, ADD_THREADS), a->rows, 1, ADD_THREADS);
}
