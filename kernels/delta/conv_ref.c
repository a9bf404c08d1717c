/* conv_ref: the twins of conv.cu. */
#include "kernels/cuda/refs.h"
#include "kernels/delta/conv.h"

#include <stddef.h>

enum { BEFORE = CONV_TAPS - 1 };

// The input `back` rows before row t of the run; NULL before position 0: zeros.
static const float *input(const struct conv_args *a, const struct run *run, uint32_t t,
                          uint32_t back) {
    if (back > run->pos + t) return NULL;
    if (back <= t)
        return (const float *)refs_ptr(a->m) + (uint64_t)(run->row + t - back) * a->channels;
    const float *state = refs_ptr(a->state + run->slot * a->slot_stride);
    return state + (uint64_t)(BEFORE - (back - t)) * a->channels;
}

void conv_ref(const struct conv_args *a) {
    const struct run *runs = refs_ptr(a->rows.runs);
    const float *w = refs_ptr(a->w);
    for (uint32_t r = 0; r < a->rows.runs_count; r++)
        for (uint32_t t = 0; t < runs[r].count; t++) {
            float *y = (float *)refs_ptr(a->y) + (uint64_t)(runs[r].row + t) * a->channels;
            for (uint32_t c = 0; c < a->channels; c++) {
                float sum = 0;
                for (uint32_t j = 0; j < CONV_TAPS; j++) {
                    const float *x = input(a, &runs[r], t, BEFORE - j);
                    sum = fmaf(w[(uint64_t)j * a->channels + c], x ? x[c] : 0, sum);
                }
                y[c] = arith_silu(sum);
            }
        }
}

static void store_channel(const struct conv_store_args *a, const struct run *run, uint32_t c) {
    float *state = refs_ptr(a->state + run->slot * a->slot_stride), in[BEFORE];
    const float *m = (const float *)refs_ptr(a->m) + (uint64_t)run->row * a->channels;
    for (uint32_t i = 0; i < BEFORE; i++) {
        uint64_t at = run->count + i;
        in[i] = at < BEFORE ? state[at * a->channels + c] : m[(at - BEFORE) * a->channels + c];
    }
    for (uint32_t i = 0; i < BEFORE; i++)
        if (!(a->stale && i == 0 && run->count > 1)) state[(uint64_t)i * a->channels + c] = in[i];
}

void conv_store_ref(const struct conv_store_args *a) {
    const struct run *runs = refs_ptr(a->runs);
    for (uint32_t r = 0; r < a->runs_count; r++)
        for (uint32_t c = 0; c < a->channels && !runs[r].record; c++) store_channel(a, &runs[r], c);
}
