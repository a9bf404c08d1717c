/* marks: events between the parts of rounds, and the time between them. Nothing but the events is sent. Inside kernels/ only; the device's
 * thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/driver.h"
#include "kernels/ops.h"

struct cuda;
struct err;

struct cuda_marks {
    cu_event events[OPS_MARKS_MAX];
    uint8_t labels[OPS_MARKS_MAX];
    uint32_t events_count, count;
};

// ST_DEVICE, ST_NOMEM: they are off.
int cuda_marks_open(struct cuda *c, struct err *e);
void cuda_marks_close(struct cuda *c); // never opened is fine
void cuda_mark(struct cuda *c, uint32_t label);
// What was marked has been waited for.
void cuda_marks_read(struct cuda *c, double ret_ms[OPS_LABELS_MAX]);
