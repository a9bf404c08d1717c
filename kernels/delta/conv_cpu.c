/* conv_cpu: see conv.h. A unit of conv is some rows of one run, one of the store a run. */
#include "kernels/cpu.h"
#include "kernels/delta/conv.h"
#include "kernels/math_f32.h"

enum { WORK = 16, BEFORE = CONV_TAPS - 1 };

struct job {
    struct conv_args a;
    uint32_t per; // rows of a unit
};

// The input `back` rows before row t of the run; NULL before position 0.
static const float *input(const struct conv_args *a, const struct run *run, uint32_t t,
                          uint32_t back) {
    if (back <= t)
        return (const float *)cpu_ptr(a->m) + (uint64_t)(run->row + t - back) * a->channels;
    if (back > run->pos + t) return NULL;
    const float *state = cpu_ptr(a->state + run->slot * a->slot_stride);
    return state + (uint64_t)(BEFORE - (back - t)) * a->channels;
}

static void conv_row(const struct conv_args *a, const struct run *run, uint32_t t) {
    const float *w = cpu_ptr(a->w), *in[CONV_TAPS];
    float *y = (float *)cpu_ptr(a->y) + (uint64_t)(run->row + t) * a->channels;
    for (uint32_t j = 0; j < CONV_TAPS; j++) in[j] = input(a, run, t, BEFORE - j);
    for (uint32_t c = 0; c < a->channels; c += LANES) {
        uint32_t n = a->channels - c < LANES ? a->channels - c : LANES;
        vf sum = vf_set(0);
        for (uint32_t j = 0; j < CONV_TAPS; j++) {
            if (!in[j]) continue;
            const float *tap = w + (uint64_t)j * a->channels + c;
            sum = n == LANES ? vf_fma(vf_load(tap), vf_load(in[j] + c), sum)
                             : vf_fma(vf_load_part(tap, n), vf_load_part(in[j] + c, n), sum);
        }
        if (n == LANES)
            vf_store(y + c, vf_silu(sum));
        else
            vf_store_part(y + c, vf_silu(sum), n);
    }
}

static void conv_unit(void *arg, uint32_t unit, uint32_t thread) {
    const struct job *j = arg;
    const struct run *run = cpu_ptr(j->a.rows.runs);
    uint32_t row = unit * j->per,
             end = row + j->per < j->a.rows.count ? row + j->per : j->a.rows.count;
    for (; row < end; row++) {
        while (row >= run->row + run->count) run++;
        conv_row(&j->a, run, row - run->row);
    }
}

void CPU_NAME(conv)(void *ctx, const struct conv_args *a) {
    struct job j = {.a = *a, .per = cpu_rows_per_unit(ctx, a->rows.count)};
    uint32_t units = (a->rows.count + j.per - 1) / j.per;
    cpu_for(ctx, (uint64_t)a->rows.count * a->channels * WORK, units, conv_unit, &j);
}

static void store_run(const struct conv_store_args *a, const struct run *run) {
    float *state = cpu_ptr(a->state + run->slot * a->slot_stride);
    const float *m = (const float *)cpu_ptr(a->m) + (uint64_t)run->row * a->channels;
    uint64_t row_bytes = a->channels * sizeof *m;
    uint32_t kept =
        run->count < BEFORE ? BEFORE - run->count : 0; // rows of the old state that stay, moved up
    for (uint32_t i = 0; i < BEFORE; i++) {
        if (a->stale && i == 0 && run->count > 1) continue; // the planted fault
        float *to = state + (uint64_t)i * a->channels;
        if (i < kept)
            memmove(to, state + (uint64_t)(BEFORE - kept + i) * a->channels, row_bytes);
        else
            memcpy(to, m + (uint64_t)(run->count + i - BEFORE) * a->channels, row_bytes);
    }
}

static void conv_store_unit(void *arg, uint32_t unit, uint32_t thread) {
    const struct conv_store_args *a = arg;
    const struct run *run = (const struct run *)cpu_ptr(a->runs) + unit;
    if (!run->record) store_run(a, run);
}

void CPU_NAME(conv_store)(void *ctx, const struct conv_store_args *a) {
    struct conv_store_args args = *a;
    uint64_t work = (uint64_t)a->runs_count * a->channels * BEFORE;
    cpu_for(ctx, work, a->runs_count, conv_store_unit, &args);
}
