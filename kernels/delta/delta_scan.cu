/* delta_scan: see delta_scan.h. A block is a run, a value head and DELTA_COLUMNS columns of its state, which stay in shared
 * memory while the run's tokens pass; four lanes share a column.
 *
 * Order   each lane of a column fuses its rows, ascending, into its parts of S^T k, S^T q and q . k, from 0; the parts add by
 *         xor 1, then 2. d = b * fma(-g, mk, v); o = fma(qk, d, g * mq); S = fma(k, d, g * S).
 * Equals  delta_scan_ref.c, bit for bit.
 * Cost    a token: the state read twice and written once in shared memory; a run: the state read and written once. */
#include "kernels/cuda/device.cuh"
#include "kernels/delta/delta_scan.h"
#include "kernels/delta/delta_scan_order.h"

enum {
    THREADS = DELTA_COLUMNS * DELTA_PARTS,
    PAD = 8, // floats after each quad of rows: the four lanes of a column then hit different banks
    STATE_MAX = DELTA_KEY_DIM_MAX * DELTA_COLUMNS + DELTA_KEY_DIM_MAX / DELTA_QUAD * PAD,
};

DEVICE_FN uint32_t at(uint32_t k, uint32_t col) {
    return k * DELTA_COLUMNS + k / DELTA_QUAD * PAD + col;
}

// All lanes of a column get the sum.
DEVICE_FN float column_sum(float v) {
    v = v + __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

DEVICE_FN void step(float *s, const float *q, const float *k, uint32_t key_dim, float v, float g,
                    float b, float *out) {
    uint32_t col = threadIdx.x / DELTA_PARTS, part = threadIdx.x % DELTA_PARTS;
    float mk = 0, mq = 0, qk = 0;
    for (uint32_t i = part * DELTA_QUAD; i < key_dim; i += DELTA_PARTS * DELTA_QUAD)
        for (uint32_t j = i; j < i + DELTA_QUAD && j < key_dim; j++) {
            float x = s[at(j, col)];
            mk = fmaf(x, k[j], mk);
            mq = fmaf(x, q[j], mq);
            qk = fmaf(q[j], k[j], qk);
        }
    mk = column_sum(mk);
    mq = column_sum(mq);
    qk = column_sum(qk);
    float d = b * fmaf(-g, mk, v);
    for (uint32_t i = part * DELTA_QUAD; i < key_dim; i += DELTA_PARTS * DELTA_QUAD)
        for (uint32_t j = i; j < i + DELTA_QUAD && j < key_dim; j++)
            s[at(j, col)] = fmaf(k[j], d, g * s[at(j, col)]);
    if (out && part == 0) out[col] = fmaf(qk, d, g * mq);
}

extern "C" __global__ void __launch_bounds__(THREADS) delta_scan(const struct delta_scan_args a) {
    __shared__ float s[STATE_MAX], q[DELTA_KEY_DIM_MAX], k[DELTA_KEY_DIM_MAX];
    const struct run run = device_ptr<const struct run>(a.runs)[blockIdx.z];
    uint32_t head = blockIdx.y, block = blockIdx.x, dk = a.key_dim, col = threadIdx.x / DELTA_PARTS;
    uint64_t key_width = (uint64_t)a.key_heads * dk;
    uint64_t value_width = (uint64_t)a.value_heads * a.value_dim;
    uint64_t key_at = (uint64_t)(head / (a.value_heads / a.key_heads)) * dk;
    uint64_t value_at = (uint64_t)head * a.value_dim + block * DELTA_COLUMNS;
    float *state = device_ptr<float>(a.state + run.slot * a.slot_stride) +
                   ((uint64_t)head * a.value_dim + (uint64_t)block * DELTA_COLUMNS) * dk;
    for (uint32_t i = threadIdx.x; i < dk * DELTA_COLUMNS; i += THREADS)
        s[at(i / DELTA_COLUMNS, i % DELTA_COLUMNS)] = run.pos ? state[i] : 0;
    for (uint32_t row = run.row; row < run.row + run.count; row++) {
        const float *qkv = device_ptr<const float>(a.qkv) + row * (2 * key_width + value_width);
        const float *gates = device_ptr<const float>(a.gates) + (uint64_t)row * 2 * a.value_heads;
        __syncthreads(); // the token before has been used
        for (uint32_t i = threadIdx.x; i < dk; i += THREADS) {
            q[i] = qkv[key_at + i];
            k[i] = qkv[key_width + key_at + i];
        }
        __syncthreads();
        step(s, q, k, dk, qkv[2 * key_width + value_at + col], gates[head],
             gates[a.value_heads + head],
             a.out ? device_ptr<float>(a.out) + row * value_width + value_at : nullptr);
    }
    if (run.record) return;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < dk * DELTA_COLUMNS; i += THREADS)
        state[i] = s[at(i / DELTA_COLUMNS, i % DELTA_COLUMNS)];
}
