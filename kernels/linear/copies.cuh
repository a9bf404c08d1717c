/* copies: asynchronous copies to shared memory: of sixteen bytes by a lane, in groups; of pieces, with barriers (sm_90). */
#pragma once
#include "kernels/cuda/device.cuh"

DEVICE_FN uint32_t copies_shared(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

DEVICE_FN void copies_16(uint32_t shared, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}

DEVICE_FN void copies_end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but the lane's last LEFT groups have come.
template <int LEFT> DEVICE_FN void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#if __CUDA_ARCH__ >= 900

DEVICE_FN void barrier_init(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

DEVICE_FN void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

DEVICE_FN void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n\t.reg .pred p;\n"
                 "again_%=:\n\tmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n\t"
                 "@!p bra again_%=;\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

// One thread: bytes that the barrier is to wait for, too, and its arrival.
DEVICE_FN void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// One thread: a piece of memory, of a multiple of sixteen bytes.
DEVICE_FN void copies_piece(uint32_t shared, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(shared),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

#endif
