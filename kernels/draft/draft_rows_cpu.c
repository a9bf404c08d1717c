/* draft_rows_cpu: what moves or scales rows for a drafter: draft_keep, draft_rotate, draft_conv, draft_gather, draft_scale. Units are
 * rows. */
#include "kernels/cpu.h"
#include "kernels/draft/draft_conv.h"
#include "kernels/draft/draft_gather.h"
#include "kernels/draft/draft_keep.h"
#include "kernels/draft/draft_rotate.h"
#include "kernels/draft/draft_scale.h"
#include "kernels/norm/norm_lanes.h"
#include "kernels/rope/rotate.h"

static void put_row(const struct draft_context *c, devptr base, uint64_t row, const float *x) {
    uint32_t n = c->heads * c->dim;
    if (c->dtype == DTYPE_F32) {
        memcpy((float *)cpu_ptr(base) + row * n, x, n * sizeof *x);
        return;
    }
    uint16_t *out = (uint16_t *)cpu_ptr(base) + row * n;
    for (uint32_t i = 0; i < n; i += LANES) {
        uint32_t part = n - i < LANES ? n - i : LANES;
        vh h = vf_to_bf16(part == LANES ? vf_load(x + i) : vf_load_part(x + i, part));
        memcpy(out + i, &h, part * sizeof *out);
    }
}

static void keep_row(void *arg, uint32_t t, uint32_t thread) {
    const struct draft_keep_args *a = arg;
    const struct draft_context *c = &a->context;
    const struct run *run = cpu_ptr(a->runs);
    uint64_t width = (uint64_t)c->heads * c->dim;
    while (t >= run->row + run->count) run++;
    uint32_t behind = run->row + run->count - 1 - t;
    if (c->ring && behind >= c->ring) return; // a later row of this run takes its place
    uint64_t row = draft_context_row(c, cpu_ptr(c->table), run->slot, run->pos + t - run->row);
    put_row(c, c->k, row, (const float *)cpu_ptr(a->k) + t * width);
    put_row(c, c->v, row, (const float *)cpu_ptr(a->v) + t * width);
}

void CPU_NAME(draft_keep)(void *ctx, const struct draft_keep_args *a) {
    struct draft_keep_args args = *a;
    cpu_for(ctx, (uint64_t)a->rows * a->context.heads * a->context.dim * 2, a->rows, keep_row,
            &args);
}

static void rotate_row(void *arg, uint32_t t, uint32_t thread) {
    const struct draft_rotate_args *a = arg;
    const float *angles = (const float *)cpu_ptr(a->angles) + (uint64_t)t * a->dim;
    float *x = (float *)cpu_ptr(a->x) + (uint64_t)t * a->heads * a->dim;
    for (uint32_t h = 0; h < a->heads; h++, x += a->dim) {
        norm_scale(x, norm_factor(x, a->dim, (float)a->dim, a->eps), cpu_ptr(a->scale), x, a->dim);
        rotate_pairs(x, angles, a->dim / 2);
    }
}

void CPU_NAME(draft_rotate)(void *ctx, const struct draft_rotate_args *a) {
    struct draft_rotate_args args = *a;
    cpu_for(ctx, (uint64_t)a->rows * a->heads * a->dim * 4, a->rows, rotate_row, &args);
}

// y[c] (+)= sum of taps, for the channels of one group.
static void conv_group(const struct draft_conv_args *a, const float *const *z, const float *k,
                       uint32_t taps, uint32_t first, float *y) {
    const float *base = cpu_ptr(a->base);
    for (uint32_t c = first; c < first + a->group; c++) {
        float sum = (base[c] + k[0]) * z[0][c];
        for (uint32_t o = 1; o < taps; o++)
            sum = sum + (base[(uint64_t)o * a->dim + c] + k[o]) * z[o][c];
        y[c] = a->add ? sum + y[c] : sum;
    }
}

static void conv_row(void *arg, uint32_t t, uint32_t thread) {
    const struct draft_conv_args *a = arg;
    const struct draft_block *b = cpu_ptr(a->blocks);
    while (t >= b->row + b->count) b++;
    uint32_t groups = a->dim / a->group, taps = t - b->row + 1;
    const float *d = (const float *)cpu_ptr(a->d) + (uint64_t)t * a->d_stride,
                *z[DRAFT_CONV_TAPS_MAX];
    float *y = (float *)cpu_ptr(a->y) + (uint64_t)t * a->dim, k[DRAFT_CONV_TAPS_MAX];
    taps = taps < a->taps ? taps : a->taps;
    for (uint32_t o = 0; o < taps; o++)
        z[o] = (const float *)cpu_ptr(a->z) + (uint64_t)(t - o) * a->dim;
    for (uint32_t g = 0; g < groups; g++) {
        for (uint32_t o = 0; o < taps; o++) k[o] = d[o * groups + g];
        conv_group(a, z, k, taps, g * a->group, y);
    }
}

void CPU_NAME(draft_conv)(void *ctx, const struct draft_conv_args *a) {
    struct draft_conv_args args = *a;
    cpu_for(ctx, (uint64_t)a->rows * a->dim * a->taps, a->rows, conv_row, &args);
}

static void gather_row(void *arg, uint32_t t, uint32_t thread) {
    const struct draft_gather_args *a = arg;
    uint64_t row = ((const uint32_t *)cpu_ptr(a->pick))[t];
    float *x = (float *)cpu_ptr(a->x) + (uint64_t)t * a->count * a->dim;
    for (uint32_t i = 0; i < a->count; i++)
        memcpy(x + (uint64_t)i * a->dim,
               (const float *)cpu_ptr(a->tables + i * a->stride) + row * a->dim,
               a->dim * sizeof *x);
}

void CPU_NAME(draft_gather)(void *ctx, const struct draft_gather_args *a) {
    struct draft_gather_args args = *a;
    cpu_for(ctx, (uint64_t)a->rows * a->count * a->dim, a->rows, gather_row, &args);
}

void CPU_NAME(draft_scale)(void *ctx, const struct draft_scale_args *a) {
    float *x = cpu_ptr(a->x);
    for (uint64_t i = 0; i < a->count; i++) x[i] *= a->factor;
}
