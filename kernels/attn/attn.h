/* attn: causal attention of each row over its stream's cache, times the sigmoid of its gate.
 *
 *   out[t,h,:] = sigmoid(gate[t,h,:]) * sum_j softmax_j(q[t,h,:] . k[j,:] * scale) v[j,:],  j = 0 .. pos[t]
 * Shapes  qg [T, H, 2, dim] f32 as kv_append leaves it; out [T, H * dim] f32. Key head of query head h: h / (H / KV).
 * Order   keys are cut at absolute positions into tiles of ATTN_TILE. Within a tile: scores by the 16 lanes of linear.h;
 *         m their maximum, p = exp(s - m), l their sum by 16 lanes and halves, o = sum p v in key order, each step fused. Tiles
 *         merge in key order: M' = max(M, m), O' = fma(O, exp(M - M'), o exp(m - M')), the sums of p likewise, unfused. So a row's bits depend on its query and keys.
 *         CUDA: attn.cu says it; tiles there make chunks, and chunks groups.
 * Rounds  fp32 throughout, own exp (kernels/math_f32.h). CUDA: queries and p become bf16 beside a BF16 cache, fp16 beside an E4M3 one.
 * Source  online softmax: Milakov and Gimelshein 2018; output gate: Qwen3.5 attention (transformers). */
#pragma once
#include "kernels/types.h"

enum { ATTN_TILE = KV_PAGE_TOKENS };

struct attn_args {
    struct rows rows;
    struct kv_view kv;
    devptr qg, out;
    uint32_t heads; // H, a multiple of kv.heads
    float scale;
};
