/* quads: rows of floats taken four at a time, and their sums of squares in that order (sums_quads in sums_ref.h). */
#pragma once
#include "kernels/cuda/device.cuh"

// Whether a row of n floats may be read sixteen bytes at a time.
DEVICE_FN bool quads_whole(const void *row, uint32_t n) {
    return n % 4 == 0 && reinterpret_cast<uintptr_t>(row) % 16 == 0;
}

// Quad i of a row of n floats; what lies behind the row is 0.
DEVICE_FN float4 quads_load(const float *row, uint32_t i, uint32_t n, bool whole) {
    float4 v = {0, 0, 0, 0};
    if (i * 4 >= n) return v;
    if (whole) return reinterpret_cast<const float4 *>(row)[i];
    v.x = row[i * 4];
    if (i * 4 + 1 < n) v.y = row[i * 4 + 1];
    if (i * 4 + 2 < n) v.z = row[i * 4 + 2];
    if (i * 4 + 3 < n) v.w = row[i * 4 + 3];
    return v;
}

DEVICE_FN void quads_store(float *row, uint32_t i, uint32_t n, bool whole, const float4 &v) {
    if (i * 4 >= n) return;
    if (whole) {
        reinterpret_cast<float4 *>(row)[i] = v;
        return;
    }
    row[i * 4] = v.x;
    if (i * 4 + 1 < n) row[i * 4 + 1] = v.y;
    if (i * 4 + 2 < n) row[i * 4 + 2] = v.z;
    if (i * 4 + 3 < n) row[i * 4 + 3] = v.w;
}

// A quad into a lane's four sums.
DEVICE_FN void quads_square(float4 &s, const float4 &v) {
    s.x = fmaf(v.x, v.x, s.x);
    s.y = fmaf(v.y, v.y, s.y);
    s.z = fmaf(v.z, v.z, s.z);
    s.w = fmaf(v.w, v.w, s.w);
}

DEVICE_FN float quads_sum(const float4 &s) {
    return (s.x + s.y) + (s.z + s.w);
}

DEVICE_FN float4 quads_scale(const float4 &v, float factor) {
    return {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
}

DEVICE_FN float4 quads_times(const float4 &a, const float4 &b) {
    return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}

DEVICE_FN float4 quads_silu(const float4 &v) {
    return {arith_silu(v.x), arith_silu(v.y), arith_silu(v.z), arith_silu(v.w)};
}
