/* attn_pipe: a ring of stages in shared memory between a warp that copies and warps that compute, by mbarriers. Bulk copies on
 * sm_90, cp.async before. */
#pragma once
#include "kernels/cuda/device.cuh"

DEVICE_FN uint32_t pipe_at(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

DEVICE_FN void pipe_init(uint64_t *barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(pipe_at(barrier)), "r"(arrivals));
}

// After the inits, before the barrier of the block.
DEVICE_FN void pipe_init_done() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::
                     : "memory");
#endif
}

DEVICE_FN void pipe_arrive(uint64_t *barrier) {
    asm volatile(
        "{\n\t.reg .b64 t;\n\tmbarrier.arrive.shared.b64 t, [%0];\n\t}" ::"r"(pipe_at(barrier))
        : "memory");
}

DEVICE_FN void pipe_wait(uint64_t *barrier, uint32_t phase) {
    uint32_t done = 0, at = pipe_at(barrier);
    while (!done)
        asm volatile("{\n\t.reg .pred p;\n\t"
#if __CUDA_ARCH__ >= 900
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\t"
#else
                     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
#endif
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(at), "r"(phase)
                     : "memory");
}

// How often a stage's barrier is arrived at when pipe_copy fills it.
#if __CUDA_ARCH__ >= 900
enum { PIPE_COPY_ARRIVALS = 1 };
#else
enum { PIPE_COPY_ARRIVALS = WARP };
#endif

// A warp starts the copy of bytes (a multiple of 512) from global memory; the barrier completes with it.
DEVICE_FN void pipe_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    uint32_t lane = threadIdx.x % WARP, at = pipe_at(to);
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        asm volatile(
            "{\n\t.reg .b64 t;\n\tmbarrier.arrive.expect_tx.shared.b64 t, [%0], %1;\n\t}" ::"r"(
                pipe_at(barrier)),
            "r"(bytes)
            : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
            "%2, [%3];" ::"r"(at),
            "l"(from), "r"(bytes), "r"(pipe_at(barrier))
            : "memory");
    }
    __syncwarp();
#else
    for (uint32_t i = lane * 16; i < bytes; i += WARP * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + i),
                     "l"((const char *)from + i)
                     : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(pipe_at(barrier))
                 : "memory");
#endif
}

// Of `threads` threads of the block, those that name this id.
DEVICE_FN void pipe_sync(uint32_t id, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Counts as one of them without waiting.
DEVICE_FN void pipe_pass(uint32_t id, uint32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// What this thread wrote to shared memory may be read or overwritten by bulk copies and wgmma.
DEVICE_FN void pipe_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

struct ring { // where somebody stands in a ring
    uint32_t stage, phase;
};

DEVICE_FN void ring_step(struct ring *r, uint32_t stages) {
    if (++r->stage < stages) return;
    r->stage = 0;
    r->phase ^= 1;
}
