/* draft_rows: what moves or scales rows for a drafter: draft_keep, draft_rotate, draft_conv, draft_gather, draft_scale: see their headers.
 *
 * Order   draft_rotate: a warp a head; lane l fuses x[l]^2, x[l + 32]^2, .. into its sum, lanes add by xor 16, 8, 4, 2, 1. The
 *         others have one, product and sum apart.
 * Cost    the bytes of the rows. */
#include "kernels/cuda/runs.cuh"
#include "kernels/draft/draft_conv.h"
#include "kernels/draft/draft_gather.h"
#include "kernels/draft/draft_keep.h"
#include "kernels/draft/draft_rotate.h"
#include "kernels/draft/draft_scale.h"
#include "kernels/draft/draft_where.cuh"

DEVICE_FN void put(devptr base, uint64_t i, enum dtype d, float x) {
    if (d == DTYPE_F32)
        device_ptr<float>(base)[i] = x;
    else
        device_ptr<uint16_t>(base)[i] = arith_to_bf16(x);
}

// Grid: rows. Of a run longer than the ring the last rows stay.
extern "C" __global__ void __launch_bounds__(DRAFT_THREADS)
    draft_keep(const struct draft_keep_args a) {
    uint32_t t = blockIdx.x, width = a.context.heads * a.context.dim;
    device_wait_prior();
    device_let_next();
    const struct run *run = runs_find(a.runs, a.runs_count, t);
    if (a.context.ring && run->row + run->count - 1 - t >= a.context.ring) return;
    uint64_t to = draft_where(a.context, run->slot, run->pos + t - run->row) * width;
    for (uint32_t i = threadIdx.x; i < width; i += DRAFT_THREADS) {
        put(a.context.k, to + i, a.context.dtype,
            device_ptr<const float>(a.k)[(uint64_t)t * width + i]);
        put(a.context.v, to + i, a.context.dtype,
            device_ptr<const float>(a.v)[(uint64_t)t * width + i]);
    }
}

// Grid: rows times heads, in warps.
extern "C" __global__ void __launch_bounds__(DRAFT_THREADS)
    draft_rotate(const struct draft_rotate_args a) {
    uint32_t unit = (blockIdx.x * DRAFT_THREADS + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    device_wait_prior();
    device_let_next();
    if (unit >= a.rows * a.heads) return;
    float *x = device_ptr<float>(a.x) + (uint64_t)unit * a.dim;
    const float *scale = device_ptr<const float>(a.scale);
    const float *cos = device_ptr<const float>(a.angles) + (uint64_t)(unit / a.heads) * a.dim;
    const float *sin = cos + a.dim / 2;
    float sum = 0;
    for (uint32_t i = lane; i < a.dim; i += WARP) sum = fmaf(x[i], x[i], sum);
    sum = device_warp_sum(sum);
    float factor = 1.0f / sqrtf(sum / (float)a.dim + a.eps);
    for (uint32_t i = lane; i < a.dim / 2; i += WARP) {
        float low = (x[i] * factor) * scale[i];
        float high = (x[i + a.dim / 2] * factor) * scale[i + a.dim / 2];
        x[i] = low * cos[i] - high * sin[i];
        x[i + a.dim / 2] = high * cos[i] + low * sin[i];
    }
}

// Grid: channels in DRAFT_THREADS, rows.
extern "C" __global__ void __launch_bounds__(DRAFT_THREADS)
    draft_conv(const struct draft_conv_args a) {
    uint32_t c = blockIdx.x * DRAFT_THREADS + threadIdx.x, t = blockIdx.y, i = 0;
    device_wait_prior();
    device_let_next();
    const struct draft_block *b = device_ptr<const struct draft_block>(a.blocks);
    while (t >= b[i].row + b[i].count) i++;
    if (c >= a.dim) return;
    uint32_t groups = a.dim / a.group, taps = t - b[i].row + 1;
    taps = taps < a.taps ? taps : a.taps;
    const float *d = device_ptr<const float>(a.d) + (uint64_t)t * a.d_stride + c / a.group;
    const float *base = device_ptr<const float>(a.base) + c;
    const float *z = device_ptr<const float>(a.z) + (uint64_t)t * a.dim + c;
    float *y = device_ptr<float>(a.y) + (uint64_t)t * a.dim + c;
    float sum = (base[0] + d[0]) * z[0];
    for (uint32_t o = 1; o < taps; o++)
        sum = sum + (base[(uint64_t)o * a.dim] + d[o * groups]) * *(z - (uint64_t)o * a.dim);
    *y = a.add ? sum + *y : sum;
}

// Grid: rows, tables.
extern "C" __global__ void __launch_bounds__(DRAFT_THREADS)
    draft_gather(const struct draft_gather_args a) {
    device_wait_prior();
    device_let_next();
    uint64_t row = device_ptr<const uint32_t>(a.pick)[blockIdx.x];
    const float *from = device_ptr<const float>(a.tables + blockIdx.y * a.stride) + row * a.dim;
    float *to = device_ptr<float>(a.x) + ((uint64_t)blockIdx.x * a.count + blockIdx.y) * a.dim;
    for (uint32_t i = threadIdx.x; i < a.dim; i += DRAFT_THREADS) to[i] = from[i];
}

extern "C" __global__ void __launch_bounds__(DRAFT_THREADS)
    draft_scale(const struct draft_scale_args a) {
    float *x = device_ptr<float>(a.x);
    device_wait_prior();
    device_let_next();
    uint64_t step = (uint64_t)gridDim.x * DRAFT_THREADS;
    for (uint64_t i = (uint64_t)blockIdx.x * DRAFT_THREADS + threadIdx.x; i < a.count; i += step)
        x[i] = x[i] * a.factor;
}
