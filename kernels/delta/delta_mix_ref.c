/* delta_mix_ref: the twin: the twins of the operations that delta_mix stands for, one after the other. */
#include "kernels/cuda/refs.h"
#include "kernels/delta/conv.h"
#include "kernels/delta/delta_gates.h"
#include "kernels/delta/delta_mix.h"
#include "kernels/delta/delta_norm.h"
#include "kernels/delta/delta_scan.h"
#include "kernels/delta/gated_norm.h"

#include <string.h>

static void copy_rows(devptr to, uint64_t to_row, devptr from, uint64_t from_row, uint32_t rows,
                      uint32_t width) {
    memcpy((float *)refs_ptr(to) + to_row * width, (const float *)refs_ptr(from) + from_row * width,
           (size_t)rows * width * sizeof(float));
}

static void record(const struct delta_mix_args *a, const struct run *run, uint32_t channels) {
    uint64_t to = run->record - 1;
    copy_rows(a->rec_m, to, a->m, run->row, run->count, channels);
    copy_rows(a->rec_qkv, to, a->qkv, run->row, run->count, channels);
    copy_rows(a->rec_gates, to, a->gates, run->row, run->count, 2 * a->value_heads);
}

static void make_inputs(const struct delta_mix_args *a, uint32_t channels) {
    conv_ref(&(struct conv_args){.rows = a->rows,
                                 .m = a->m,
                                 .w = a->conv_w,
                                 .y = a->qkv,
                                 .state = a->conv_state,
                                 .slot_stride = a->slot_stride,
                                 .channels = channels});
    delta_norm_ref(&(struct delta_norm_args){.qkv = a->qkv,
                                             .rows = a->rows.count,
                                             .channels = channels,
                                             .key_heads = a->key_heads,
                                             .key_dim = a->key_dim,
                                             .q_scale = a->q_scale});
    delta_gates_ref(&(struct delta_gates_args){.a = a->a,
                                               .b = a->b,
                                               .neg_a = a->neg_a,
                                               .dt_bias = a->dt_bias,
                                               .gates = a->gates,
                                               .rows = a->rows.count,
                                               .heads = a->value_heads});
}

void delta_mix_ref(const struct delta_mix_args *a) {
    uint32_t channels = 2 * a->key_heads * a->key_dim + a->value_heads * a->value_dim;
    const struct run *runs = refs_ptr(a->rows.runs);
    make_inputs(a, channels);
    for (uint32_t r = 0; r < a->rows.runs_count; r++)
        if (runs[r].record) record(a, &runs[r], channels);
    conv_store_ref(&(struct conv_store_args){.runs = a->rows.runs,
                                             .runs_count = a->rows.runs_count,
                                             .m = a->m,
                                             .state = a->conv_state,
                                             .slot_stride = a->slot_stride,
                                             .channels = channels,
                                             .stale = a->stale});
    delta_scan_ref(&(struct delta_scan_args){.runs = a->rows.runs,
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
                                             .value_dim = a->value_dim});
    gated_norm_ref(&(struct gated_norm_args){.o = a->o,
                                             .z = a->z,
                                             .w = a->norm_w,
                                             .y = a->o,
                                             .rows = a->rows.count,
                                             .heads = a->value_heads,
                                             .dim = a->value_dim,
                                             .eps = a->eps});
}
