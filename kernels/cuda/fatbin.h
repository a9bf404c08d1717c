/* fatbin: the compiled kernels embedded in this binary (fatbin.py makes the tables from nvcc's cubins). Without nvcc
 * there are none. Constant, any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct cuda_image { // one .cu file: a fatbin of all architectures and the PTX
    const char *name;
    const unsigned char *data;
};

struct cuda_kernel_arch { // as compiled for one architecture
    uint32_t sm;
    uint32_t shared_bytes; // static
    uint32_t params_bytes;
    bool waits; // it calls device_wait_prior: a launch of it may be early
};

struct cuda_kernel {
    const char *name;
    uint32_t image; // index of cuda_images
    uint32_t archs_count;
    const struct cuda_kernel_arch *archs;
};

extern const struct cuda_image cuda_images[];
extern const uint32_t cuda_images_count;
extern const struct cuda_kernel cuda_kernels[]; // by name
extern const uint32_t cuda_kernels_count;

const struct cuda_kernel *cuda_kernel_find(const char *name); // NULL: not compiled
// Its entry for an architecture: of this very sm, else of the widest below it of the same major version; NULL: none, the
// PTX would have to serve.
const struct cuda_kernel_arch *cuda_kernel_on(const struct cuda_kernel *k, uint32_t sm);
