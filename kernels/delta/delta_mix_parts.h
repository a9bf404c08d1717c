/* delta_mix_parts: the six operations that a delta_mix stands for, in their order, with their arguments. Its twin and its plan of
 * many rows run them, and so do tests that hold it against them. Behind the gates come the records of runs that keep some. */
#ifndef RAILYARD_KERNELS_DELTA_MIX_PARTS_H
#define RAILYARD_KERNELS_DELTA_MIX_PARTS_H

#include "kernels/delta/conv.h"
#include "kernels/delta/delta_gates.h"
#include "kernels/delta/delta_mix.h"
#include "kernels/delta/delta_norm.h"
#include "kernels/delta/delta_scan.h"
#include "kernels/delta/gated_norm.h"

struct delta_mix_parts {
    uint32_t channels; // of a row of m and of qkv
    struct conv_args conv;
    struct delta_norm_args norm;
    struct delta_gates_args gates;
    struct conv_store_args store;
    struct delta_scan_args scan;
    struct gated_norm_args out;
};

static inline struct delta_mix_parts delta_mix_parts(const struct delta_mix_args *a) {
    uint32_t channels = 2 * a->key_heads * a->key_dim + a->value_heads * a->value_dim;
    return (struct delta_mix_parts){.channels = channels,
                                    .conv = {.rows = a->rows,
                                             .m = a->m,
                                             .w = a->conv_w,
                                             .y = a->qkv,
                                             .state = a->conv_state,
                                             .slot_stride = a->slot_stride,
                                             .channels = channels},
                                    .norm = {.qkv = a->qkv,
                                             .rows = a->rows.count,
                                             .channels = channels,
                                             .key_heads = a->key_heads,
                                             .key_dim = a->key_dim,
                                             .q_scale = a->q_scale},
                                    .gates = {.a = a->a,
                                              .b = a->b,
                                              .neg_a = a->neg_a,
                                              .dt_bias = a->dt_bias,
                                              .gates = a->gates,
                                              .rows = a->rows.count,
                                              .heads = a->value_heads},
                                    .store = {.runs = a->rows.runs,
                                              .runs_count = a->rows.runs_count,
                                              .m = a->m,
                                              .state = a->conv_state,
                                              .slot_stride = a->slot_stride,
                                              .channels = channels,
                                              .stale = a->stale},
                                    .scan = {.runs = a->rows.runs,
                                             .runs_count = a->rows.runs_count,
                                             .rows = a->rows.count,
                                             .qkv = a->qkv,
                                             .gates = a->gates,
                                             .out = a->o,
                                             .state = a->state,
                                             .slot_stride = a->slot_stride,
                                             .key_heads = a->key_heads,
                                             .value_heads = a->value_heads,
                                             .key_dim = a->key_dim,
                                             .value_dim = a->value_dim},
                                    .out = {.o = a->o,
                                            .z = a->z,
                                            .w = a->norm_w,
                                            .y = a->o,
                                            .rows = a->rows.count,
                                            .heads = a->value_heads,
                                            .dim = a->value_dim,
                                            .eps = a->eps}};
}

#endif
