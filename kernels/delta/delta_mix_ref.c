/* delta_mix_ref: the twin: the twins of the operations that delta_mix stands for, one after the other. */
#include "kernels/cuda/refs.h"
#include "kernels/delta/delta_mix_parts.h"

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

void delta_mix_ref(const struct delta_mix_args *a) {
    struct delta_mix_parts p = delta_mix_parts(a);
    const struct run *runs = refs_ptr(a->rows.runs);
    conv_ref(&p.conv);
    delta_norm_ref(&p.norm);
    delta_gates_ref(&p.gates);
    for (uint32_t r = 0; r < a->rows.runs_count; r++)
        if (runs[r].record) record(a, &runs[r], p.channels);
    conv_store_ref(&p.store);
    delta_scan_ref(&p.scan);
    gated_norm_ref(&p.out);
}
