/* experts_channels: four neighbouring channels of 128, by a lane of a warp: what comes before and after an EXL3 product. */
#pragma once
#include "kernels/linear/exl3.cuh"

DEVICE_FN void experts_times_halves(float v[4], devptr factors, uint32_t channel) {
    uint2 h = *reinterpret_cast<const uint2 *>(device_ptr<const uint16_t>(factors) + channel);
    v[0] = v[0] * arith_from_f16((uint16_t)h.x);
    v[1] = v[1] * arith_from_f16((uint16_t)(h.x >> 16));
    v[2] = v[2] * arith_from_f16((uint16_t)h.y);
    v[3] = v[3] * arith_from_f16((uint16_t)(h.y >> 16));
}

// The end of a product; of a plain one nothing is left to do.
DEVICE_FN void experts_finish(float v[4], const struct exl3 &q, uint32_t channel) {
    if (!q.half_bits) return;
    exl3_rotate(v);
    experts_times_halves(v, q.svh, channel);
    if (!q.bias) return;
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = v[j] + device_ptr<const float>(q.bias)[channel + j];
}

// Inputs of a product as an EXL3, bf16 or f16 weight takes them.
DEVICE_FN uint2 experts_halves(const struct weight &w, uint32_t channel, float v[4]) {
    if (!w.exl3.half_bits && w.dtype == DTYPE_BF16)
        return make_uint2(device_pack<DTYPE_BF16>(v[0], v[1]), device_pack<DTYPE_BF16>(v[2], v[3]));
    if (w.exl3.half_bits) {
        experts_times_halves(v, w.exl3.suh, channel);
        exl3_rotate(v);
    }
    return make_uint2(device_pack<DTYPE_F16>(v[0], v[1]), device_pack<DTYPE_F16>(v[2], v[3]));
}
