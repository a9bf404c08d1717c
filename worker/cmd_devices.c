/* cmd_devices: the GPUs that a worker of this build can run on, as JSON; and what a worker says of its own. */
#include "common/err.h"
#include "common/strbuf.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/driver.h"
#include "proto/exit_code.h"
#include "worker/cmd.h"
#include "worker/options.h"

#include <stdio.h>
#include <string.h>

enum { DEVICES_MAX = 64 };

// None where there is no driver, no GPU, or no kernel in this build.
static uint32_t find_devices(struct cuda_device_info ret[DEVICES_MAX]) {
    struct cuda_driver driver;
    struct err e = {0};
    uint32_t count = 0;
    if (!cuda_built() || cuda_driver_open(&driver, &e)) return 0;
    return cuda_devices(&driver, ret, DEVICES_MAX, &count, &e) ? 0 : count;
}

int cmd_list_devices(void) {
    struct cuda_device_info all[DEVICES_MAX];
    uint32_t count = find_devices(all);
    printf("[");
    for (uint32_t i = 0; i < count; i++) {
        const struct cuda_device_info *d = &all[i];
        // Names of GPUs have neither quotes nor backslashes in them.
        printf("%s\n {\"device\":%u,\"name\":\"%s\",\"uuid\":\"%s\",\"pci\":\"%s\","
               "\"compute_capability\":\"%u.%u\",\"memory_bytes\":%llu,\"unified\":%s}",
               i ? "," : "", i, d->name, d->uuid, d->pci, d->sm / 10, d->sm % 10,
               (unsigned long long)d->memory_bytes, d->unified ? "true" : "false");
    }
    printf("%s]\n", count ? "\n" : "");
    return EXIT_CODE_OK;
}

bool devices_own(const struct options *o, struct cuda_device_info *ret) {
    struct cuda_device_info all[DEVICES_MAX];
    uint32_t count = strcmp(o->backend, "cpu") ? find_devices(all) : 0;
    if (!count) return false;
    uint32_t wanted = options_device(o);
    if (o->device >= 0 && wanted >= count) return false; // the engine will say so
    *ret = all[wanted % count];
    return true;
}
