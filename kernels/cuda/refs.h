/* refs: the twins of the CUDA kernels: host loops in the kernels' own order of arithmetic, for tests. Slow.
 *
 * A twin takes its operation's arguments, with host addresses in them, and gives the bits that the kernel gives on sm_90
 * (NaNs are NaNs; their payload is the machine's). One thread each. */
#pragma once
#include <stdint.h>

#include "kernels/cuda/arith.h"
#include "kernels/ops.h" // names of the arguments
#include "kernels/types.h"

static inline void *refs_ptr(devptr p) {
    return (void *)(uintptr_t)p;
}

static inline float refs_load(devptr p, uint64_t i, enum dtype d) {
    const void *at = refs_ptr(p);
    if (d == DTYPE_F32) return ((const float *)at)[i];
    uint16_t h = ((const uint16_t *)at)[i];
    return d == DTYPE_BF16 ? arith_from_bf16(h) : arith_from_f16(h);
}

void attn_ref(const struct attn_args *a);
void conv_ref(const struct conv_args *a);
void conv_store_ref(const struct conv_store_args *a);
void delta_commit_ref(const struct delta_commit_args *a);
void delta_gates_ref(const struct delta_gates_args *a);
void delta_mix_ref(const struct delta_mix_args *a);
void delta_norm_ref(const struct delta_norm_args *a);
void delta_scan_ref(const struct delta_scan_args *a);
void draw_ref(const struct draw_args *a);
void embed_ref(const struct embed_args *a);
void expert_sum_ref(const struct expert_sum_args *a);
void experts_ref(const struct experts_args *a);
void gated_norm_ref(const struct gated_norm_args *a);
void kv_append_ref(const struct kv_append_args *a);
void linear_ref(const struct linear_args *a);
void rmsnorm_ref(const struct rmsnorm_args *a);
void rope_ref(const struct rope_args *a);
void router_ref(const struct router_args *a);
void swiglu_ref(const struct swiglu_args *a);
