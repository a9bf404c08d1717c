/* marks: see marks.h. */
#include "kernels/cuda/marks.h"
#include "common/err.h"
#include "common/mem.h"
#include "kernels/cuda/device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int cuda_marks_open(struct cuda *c, struct err *e) {
    struct cuda_marks *m = c->marks ? c->marks : mem_calloc(1, sizeof *m);
    c->marks = m;
    m->count = 0;
    while (m->events_count < OPS_MARKS_MAX) {
        cu_result r = c->d->event_new(&m->events[m->events_count], 0);
        if (r) {
            cuda_marks_close(c);
            return cuda_driver_error(c->d, r, "cuEventCreate", e);
        }
        m->events_count++;
    }
    return ST_OK;
}

void cuda_marks_close(struct cuda *c) {
    struct cuda_marks *m = c->marks;
    if (!m) return;
    for (uint32_t i = 0; i < m->events_count; i++) c->d->event_free(m->events[i]);
    free(m);
    c->marks = NULL;
}

void cuda_mark(struct cuda *c, uint32_t label) {
    struct cuda_marks *m = c->marks;
    assert(label < OPS_LABELS_MAX);
    if (!m || c->failed || m->count == OPS_MARKS_MAX) return;
    m->labels[m->count] = (uint8_t)label;
    cuda_check(c, c->d->event_record(m->events[m->count++], c->stream), "cuEventRecord");
}

void cuda_marks_read(struct cuda *c, double ret_ms[OPS_LABELS_MAX]) {
    struct cuda_marks *m = c->marks;
    memset(ret_ms, 0, OPS_LABELS_MAX * sizeof *ret_ms);
    for (uint32_t i = 0; m && i + 1 < m->count && !c->failed; i++) {
        float ms = 0;
        cuda_check(c, c->d->event_ms(&ms, m->events[i], m->events[i + 1]), "cuEventElapsedTime");
        ret_ms[m->labels[i]] += ms;
    }
    if (m) m->count = 0;
}
