/* graph: the launches of operations, taken down once and then sent by one call.
 *
 * A graph holds launches alone: while one is taken down nothing may be written, read, filled or waited for, and launches only
 * happen when the graph runs. What differs between two runs is in device memory, at addresses that stay.
 * Inside kernels/ only; the device's thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/driver.h"

struct cuda;
struct err;

enum {
    CUDA_GRAPH_LAUNCH_BYTES = 2600
}; // of the device, about: 64 graphs of 1000 launches took 158 MiB of an H200 (driver 580)

struct cuda_graph {
    cu_graph_exec exec;
    uint64_t launches;
};

// Until cuda_graph_end. early: addresses are not known yet; the launches are taken down for the memory that they need, and
// must not be run before they were taken down again.
int cuda_graph_begin(struct cuda *c, bool early, struct err *e);
/* The launches since cuda_graph_begin as *io: made where that is NULL; else pointed at the new arguments, which takes no memory as
 * long as the launches are the same ones. All memory that running it takes is taken here: ST_NOMEM; ST_DEVICE. On failure *io is
 * freed and NULL. */
int cuda_graph_end(struct cuda *c, struct cuda_graph **io, struct err *e);
void cuda_graph_run(struct cuda *c, const struct cuda_graph *g);
void cuda_graph_free(struct cuda *c, struct cuda_graph *g); // NULL is fine
