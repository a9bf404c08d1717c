/* devices: see devices.h. */
#include "kernels/cuda/devices.h"
#include "common/num.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/fatbin.h"

#include <stdio.h>
#include <string.h>

bool cuda_built(void) {
    return cuda_images_count > 0;
}

static void format_uuid(const struct cu_uuid *u, char ret[48]) {
    int at = snprintf(ret, 48, "GPU-");
    for (int i = 0; i < 16; i++)
        at += snprintf(ret + at, (size_t)(48 - at), "%s%02x",
                       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u->bytes[i]);
}

static cu_result read_one(const struct cuda_driver *d, int ordinal, struct cuda_device_info *ret) {
    cu_device device = 0;
    struct cu_uuid uuid = {{0}};
    size_t bytes = 0;
    int major = 0, minor = 0, integrated = 0;
    cu_result r = d->device_get(&device, ordinal);
    if (!r) r = d->device_name(ret->name, sizeof ret->name, device);
    if (!r) r = d->device_uuid(&uuid, device);
    if (!r) r = d->device_pci(ret->pci, sizeof ret->pci, device);
    if (!r) r = d->device_memory(&bytes, device);
    if (!r) r = d->device_attribute(&major, CU_ATTR_CC_MAJOR, device);
    if (!r) r = d->device_attribute(&minor, CU_ATTR_CC_MINOR, device);
    if (!r) r = d->device_attribute(&integrated, CU_ATTR_INTEGRATED, device);
    format_uuid(&uuid, ret->uuid);
    ret->sm = (uint32_t)(major * 10 + minor);
    ret->memory_bytes = bytes;
    ret->unified = integrated != 0;
    return r;
}

int cuda_devices(const struct cuda_driver *d, struct cuda_device_info *ret, uint32_t max,
                 uint32_t *ret_count, struct err *e) {
    int count = 0;
    cu_result r = d->device_count(&count);
    for (int i = 0; !r && i < count && i < (int)max; i++) {
        memset(&ret[i], 0, sizeof ret[i]);
        r = read_one(d, i, &ret[i]);
    }
    if (r) return cuda_driver_error(d, r, "looking at the GPUs", e);
    *ret_count = min_u32((uint32_t)count, max);
    return 0;
}
