/* launch: see launch.h. */
#include "kernels/cuda/launch.h"

#include <assert.h>
#include <string.h>

// Shared memory of a block: CUDA C++ programming guide, technical specifications per compute capability, less the
// 1 KiB that the system keeps of each from 8.0 on.
const struct cuda_arch cuda_archs[] = {
    {80, 163 << 10, 108},  {86, 99 << 10, 84},   {89, 99 << 10, 128}, {90, 227 << 10, 132},
    {100, 227 << 10, 148}, {120, 99 << 10, 170}, {0, 0, 0},
};

struct launch *launch_add(struct launch_list *l, const char *kernel, const void *params,
                          uint32_t params_bytes) {
    assert(l->count < LAUNCHES_MAX && params_bytes <= LAUNCH_PARAMS_MAX);
    struct launch *n = &l->launches[l->count++];
    n->kernel = kernel;
    for (int i = 0; i < 3; i++) n->grid[i] = n->block[i] = 1;
    n->shared_bytes = 0;
    n->early = false;
    n->params_bytes = params_bytes;
    memcpy(n->params, params, params_bytes);
    return n;
}
