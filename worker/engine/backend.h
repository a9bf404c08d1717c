/* backend: which device an engine computes on, opened: its table of operations and what must outlive that. */
#pragma once
#include "kernels/cuda/driver.h"
#include "kernels/ops.h"

struct cpu_pool;
struct engine_config;
struct err;

struct backend {
    struct cpu_pool *pool; // of the CPU backend; else for copies and draws
    struct cuda_driver driver;
    struct ops ops;
};

// "auto" takes the GPU when this build has kernels and the driver shows one, and then any trouble with it is an error: it never falls back in silence.
// ret must stay where it is. On failure nothing is to be given back.
int backend_open(struct backend *ret, const struct engine_config *config, struct err *e);
void backend_close(struct backend *b); // zeroed is fine
