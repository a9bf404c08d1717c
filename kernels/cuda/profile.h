/* profile: how long each operation of a graph takes, by events between them. Events keep launches from overlapping, so that the sum is
 * more than the graph takes without. Inside kernels/ only; the device's thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/driver.h"
#include "kernels/ops.h"

struct cuda;
struct err;
struct linear_args;
struct q4_linear_args;

enum { PROFILE_OPS_MAX = 4096 }; // of one graph; later ones are left out

struct cuda_profile {
    cu_event events[PROFILE_OPS_MAX + 1]; // [i]: before operation i
    struct ops_time ops[PROFILE_OPS_MAX];
    uint32_t events_count, count;
    struct ops_time next;
};

// From now on graphs are taken down with events between their operations. ST_DEVICE, ST_NOMEM: it is as it was.
int cuda_profile_open(struct cuda *c, struct err *e);
void cuda_profile_close(struct cuda *c); // never opened is fine
// Between cuda_graph_begin and _end: the beginning; what comes next is; it is over.
void cuda_profile_begin(struct cuda *c);
void cuda_profile_name(struct cuda *c, const char *op, uint64_t bytes);
void cuda_profile_linear(struct cuda *c, const struct linear_args *a);
void cuda_profile_q4(struct cuda *c, const struct q4_linear_args *a);
void cuda_profile_mark(struct cuda *c);
// The operations of the graph taken down last, by name, as they took in its last run, which has ended.
uint32_t cuda_profile_read(struct cuda *c, struct ops_time *ret, uint32_t max);
