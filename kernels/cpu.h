/* cpu: what the files of the CPU backend share. They are compiled once per instruction set (CPU_VARIANT names it), each
 * time with the same source and other flags; CPU_NAME keeps the symbols apart. Inside kernels/ only.
 *
 * An operation cuts its work into units that write disjoint outputs and gives them to the pool, or runs them at once when
 * they are too little to share. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu_pool.h"
#include "kernels/ops.h"
#include "kernels/types.h"

#ifndef CPU_VARIANT
#define CPU_VARIANT base
#endif
#define CPU_PASTE2(a, b) a##_cpu_##b
#define CPU_PASTE(a, b) CPU_PASTE2(a, b)
#define CPU_NAME(op) CPU_PASTE(op, CPU_VARIANT)

enum {
    // Multiply-adds below which sharing costs more than it gives: a hand-over takes one to two microseconds.
    CPU_SHARE_WORK = 20000,
};

struct exl3_scratch; // kernels/linear/exl3_cpu.h

struct cpu {
    struct cpu_pool *pool;
    uint32_t threads;
    struct exl3_scratch *exl3; // one for each thread
    struct {                   // operations are over when they return, so the host's clock tells
        bool on;
        uint32_t label;
        uint64_t since_ns;
        double ms[OPS_LABELS_MAX];
    } marks;
};

static inline void *cpu_ptr(devptr p) {
    return (void *)(uintptr_t)p;
}

// work: multiply-adds, or what takes as long, of all units together.
static inline void cpu_for(struct cpu *c, uint64_t work, uint32_t units, cpu_pool_fn *fn,
                           void *arg) {
    if (work >= CPU_SHARE_WORK && units > 1)
        cpu_pool_run(c->pool, units, fn, arg);
    else
        for (uint32_t i = 0; i < units; i++) fn(arg, i, 0);
}

// Rows a unit when `rows` rows are shared by rows alone: about four units a thread.
static inline uint32_t cpu_rows_per_unit(const struct cpu *c, uint32_t rows) {
    uint32_t per = rows / (c->threads * 4);
    return per ? per : 1;
}

struct ops; // the operations of one variant, without memory and name
void CPU_NAME(ops_fill)(struct ops *o);

void CPU_NAME(embed)(void *ctx, const struct embed_args *a);
void CPU_NAME(rmsnorm)(void *ctx, const struct rmsnorm_args *a);
void CPU_NAME(linear)(void *ctx, const struct linear_args *a);
// Up to CPU_LINEAR_MANY calls of linear that do not touch each other's outputs, shared among the threads as one. Each gives
// the bits it would give alone.
enum { CPU_LINEAR_MANY = 32 };
void CPU_NAME(linear_many)(void *ctx, const struct linear_args *a, uint32_t count);
void CPU_NAME(swiglu)(void *ctx, const struct swiglu_args *a);
void CPU_NAME(rope)(void *ctx, const struct rope_args *a);
void CPU_NAME(kv_append)(void *ctx, const struct kv_append_args *a);
void CPU_NAME(attn)(void *ctx, const struct attn_args *a);
void CPU_NAME(conv)(void *ctx, const struct conv_args *a);
void CPU_NAME(conv_store)(void *ctx, const struct conv_store_args *a);
void CPU_NAME(delta_gates)(void *ctx, const struct delta_gates_args *a);
void CPU_NAME(delta_norm)(void *ctx, const struct delta_norm_args *a);
void CPU_NAME(delta_scan)(void *ctx, const struct delta_scan_args *a);
void CPU_NAME(gated_norm)(void *ctx, const struct gated_norm_args *a);
void CPU_NAME(router)(void *ctx, const struct router_args *a);
uint64_t CPU_NAME(experts_room)(void *ctx, const struct experts_args *a);
void CPU_NAME(experts)(void *ctx, const struct experts_args *a);
void CPU_NAME(expert_sum)(void *ctx, const struct expert_sum_args *a);
void CPU_NAME(draft_attn)(void *ctx, const struct draft_attn_args *a);
void CPU_NAME(draft_keep)(void *ctx, const struct draft_keep_args *a);
void CPU_NAME(draft_rotate)(void *ctx, const struct draft_rotate_args *a);
void CPU_NAME(draft_conv)(void *ctx, const struct draft_conv_args *a);
void CPU_NAME(draft_gather)(void *ctx, const struct draft_gather_args *a);
void CPU_NAME(draft_scale)(void *ctx, const struct draft_scale_args *a);
void CPU_NAME(draft_top)(void *ctx, const struct draft_top_args *a);
void CPU_NAME(q4_pack)(void *ctx, const struct q4_pack_args *a);
void CPU_NAME(q4_linear)(void *ctx, const struct q4_linear_args *a);
