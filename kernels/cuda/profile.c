/* profile: see profile.h. */
#include "kernels/cuda/profile.h"
#include "common/err.h"
#include "common/mem.h"
#include "kernels/cuda/device.h"
#include "kernels/draft/q4_linear.h"
#include "kernels/linear/linear.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuda_profile_open(struct cuda *c, struct err *e) {
    struct cuda_profile *p = c->profile ? c->profile : mem_calloc(1, sizeof *p);
    c->profile = p;
    while (p->events_count < PROFILE_OPS_MAX + 1) {
        cu_result r = c->d->event_new(&p->events[p->events_count], 0);
        if (r) {
            cuda_profile_close(c);
            return cuda_driver_error(c->d, r, "cuEventCreate", e);
        }
        p->events_count++;
    }
    return ST_OK;
}

void cuda_profile_close(struct cuda *c) {
    struct cuda_profile *p = c->profile;
    if (!p) return;
    for (uint32_t i = 0; i < p->events_count; i++) c->d->event_free(p->events[i]);
    free(p);
    c->profile = NULL;
}

static void record(struct cuda *c) {
    struct cuda_profile *p = c->profile;
    cuda_check(c,
               c->d->event_record_flags(p->events[p->count], c->stream, CU_EVENT_RECORD_EXTERNAL),
               "cuEventRecordWithFlags");
}

void cuda_profile_begin(struct cuda *c) {
    c->profile->count = 0;
    record(c);
}

void cuda_profile_name(struct cuda *c, const char *op, uint64_t bytes) {
    if (!c->profile) return;
    snprintf(c->profile->next.name, sizeof c->profile->next.name, "%s", op);
    c->profile->next.bytes = bytes;
}

void cuda_profile_linear(struct cuda *c, const struct linear_args *a) {
    const struct weight *first = &a->parts[0].w;
    uint64_t bytes = 0, rows = 0;
    char name[OPS_TIME_NAME_BYTES];
    for (uint32_t i = 0; i < a->parts_count; i++) {
        const struct weight *w = &a->parts[i].w;
        uint64_t values = (uint64_t)w->rows * w->cols;
        bytes +=
            w->exl3.half_bits ? values * w->exl3.half_bits / 16 : values * dtype_bytes(w->dtype);
        rows += w->rows;
    }
    snprintf(name, sizeof name, "linear %llux%u, %g bits", (unsigned long long)rows, first->cols,
             first->exl3.half_bits ? first->exl3.half_bits / 2.0 : 8.0 * dtype_bytes(first->dtype));
    cuda_profile_name(c, name, bytes);
}

void cuda_profile_q4(struct cuda *c, const struct q4_linear_args *a) {
    uint64_t bytes = 0, rows = 0;
    char name[OPS_TIME_NAME_BYTES];
    for (uint32_t i = 0; i < a->parts_count; i++) {
        const struct q4 *w = &a->parts[i].w;
        bytes += q4_codes_bytes(w->rows, w->cols) + q4_factors_bytes(w->rows, w->cols);
        rows += w->rows;
    }
    snprintf(name, sizeof name, "q4_linear %llux%u", (unsigned long long)rows, a->parts[0].w.cols);
    cuda_profile_name(c, name, bytes);
}

void cuda_profile_mark(struct cuda *c) {
    struct cuda_profile *p = c->profile;
    if (p->count == PROFILE_OPS_MAX) return;
    p->ops[p->count++] = p->next;
    record(c);
}

static struct ops_time *named(struct ops_time *v, uint32_t *count, uint32_t max, const char *name) {
    for (uint32_t i = 0; i < *count; i++)
        if (!strcmp(v[i].name, name)) return &v[i];
    if (*count == max) return NULL;
    struct ops_time *t = &v[(*count)++];
    *t = (struct ops_time){0};
    memcpy(t->name, name, sizeof t->name);
    return t;
}

uint32_t cuda_profile_read(struct cuda *c, struct ops_time *ret, uint32_t max) {
    const struct cuda_profile *p = c->profile;
    uint32_t count = 0;
    for (uint32_t i = 0; p && i < p->count && !c->failed; i++) {
        float ms = 0;
        cuda_check(c, c->d->event_ms(&ms, p->events[i], p->events[i + 1]), "cuEventElapsedTime");
        struct ops_time *t = named(ret, &count, max, p->ops[i].name);
        if (!t) continue;
        t->calls++;
        t->ms += ms;
        t->bytes += p->ops[i].bytes;
    }
    return count;
}
