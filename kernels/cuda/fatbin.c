/* fatbin: see fatbin.h. */
#include "kernels/cuda/fatbin.h"

#include <stddef.h>
#include <string.h>

const struct cuda_kernel *cuda_kernel_find(const char *name) {
    uint32_t low = 0, high = cuda_kernels_count;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        int c = strcmp(cuda_kernels[mid].name, name);
        if (!c) return &cuda_kernels[mid];
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

const struct cuda_kernel_arch *cuda_kernel_on(const struct cuda_kernel *k, uint32_t sm) {
    const struct cuda_kernel_arch *best = NULL;
    for (uint32_t i = 0; i < k->archs_count; i++) {
        const struct cuda_kernel_arch *a = &k->archs[i];
        if (a->sm / 10 == sm / 10 && a->sm <= sm && (!best || a->sm > best->sm)) best = a;
    }
    return best;
}
