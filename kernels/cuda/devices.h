/* devices: the GPUs that the driver shows, for lists and names. Opens no context. Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct cuda_driver;
struct err;

struct cuda_device_info {
    char name[128];
    char uuid[48]; // "GPU-8-4-4-4-12", as other tools print it
    char pci[32];
    uint32_t sm; // 90 for compute capability 9.0
    uint64_t memory_bytes;
    bool unified;
};

// Whether this build holds kernels at all. Without them it runs on the CPU alone.
bool cuda_built(void);
// At most max of them. ST_DEVICE when the driver fails.
int cuda_devices(const struct cuda_driver *d, struct cuda_device_info *ret, uint32_t max,
                 uint32_t *ret_count, struct err *e);
