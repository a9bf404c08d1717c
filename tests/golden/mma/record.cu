/* Records the steps of tests/lib/mma_cases.h as a GPU computes them: `record OUT` writes their sums, fp32, case by case, row by
 * row. README.md beside this says how steps.bin was made. */
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/cuda/device.cuh"
#include "tests/lib/mma_cases.h"

template <enum dtype D> DEVICE_FN void step(const struct mma_case &m, float *out) {
    uint32_t g = threadIdx.x / 4, c = threadIdx.x % 4;
    uint32_t a[4], b[2];
    float sum[4];
    for (int i = 0; i < 4; i++) {
        const uint16_t *p = &m.a[g + i % 2 * 8][2 * c + i / 2 * 8];
        a[i] = p[0] | (uint32_t)p[1] << 16;
        sum[i] = arith_float(m.c[g + i / 2 * 8][2 * c + i % 2]);
    }
    for (int i = 0; i < 2; i++) {
        const uint16_t *p = &m.b[g][2 * c + i * 8];
        b[i] = p[0] | (uint32_t)p[1] << 16;
    }
    device_mma<D>(sum, a, b);
    for (int i = 0; i < 4; i++) out[(g + i / 2 * 8) * MMA_COLS + 2 * c + i % 2] = sum[i];
}

__global__ void steps(const struct mma_case *cases, float *out) {
    const struct mma_case &m = cases[blockIdx.x];
    out += blockIdx.x * MMA_ROWS * MMA_COLS;
    if (m.dtype == DTYPE_F16)
        step<DTYPE_F16>(m, out);
    else
        step<DTYPE_BF16>(m, out);
}

static void must(cudaError_t e) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s\n", cudaGetErrorString(e));
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    std::vector<struct mma_case> cases(MMA_CASES);
    std::vector<float> out(MMA_CASES * MMA_ROWS * MMA_COLS);
    for (uint32_t i = 0; i < MMA_CASES; i++) mma_case_make(i, &cases[i]);
    void *in, *dev;
    must(cudaMalloc(&in, cases.size() * sizeof cases[0]));
    must(cudaMalloc(&dev, out.size() * sizeof out[0]));
    must(cudaMemcpy(in, cases.data(), cases.size() * sizeof cases[0], cudaMemcpyHostToDevice));
    steps<<<MMA_CASES, 32>>>((const struct mma_case *)in, (float *)dev);
    must(cudaGetLastError());
    must(cudaMemcpy(out.data(), dev, out.size() * sizeof out[0], cudaMemcpyDeviceToHost));
    FILE *f = fopen(argv[1], "wb");
    if (!f || fwrite(out.data(), sizeof out[0], out.size(), f) != out.size() || fclose(f)) return 1;
    return 0;
}
