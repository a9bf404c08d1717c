/* backend: see backend.h. */
#include "worker/engine/backend.h"
#include "common/err.h"
#include "kernels/cpu_pool.h"
#include "kernels/cuda/devices.h"
#include "worker/engine/engine.h"

#include <string.h>

static int open_driver(struct backend *b, const struct engine_config *config, struct err *e) {
    if (!config->driver) return cuda_driver_open(&b->driver, e);
    b->driver = *config->driver;
    return ST_OK;
}

static int open_cuda(struct backend *b, const struct engine_config *config, struct err *e) {
    int count = 0;
    cu_result r = b->driver.device_count(&count);
    if (r) return cuda_driver_error(&b->driver, r, "cuDeviceGetCount", e);
    struct ops_cuda_config c = {
        .driver = &b->driver,
        .device = config->device_wraps && count ? config->device % (uint32_t)count : config->device,
        .pool = b->pool,
        .partial = config->on_ops != NULL};
    return ops_cuda_open(&b->ops, &c, e);
}

static int open_ops(struct backend *b, const struct engine_config *config, struct err *e) {
    const char *name = config->backend ? config->backend : "auto";
    bool gpu = !strcmp(name, "cuda"), cpu = !strcmp(name, "cpu");
    if (!gpu && !cpu && strcmp(name, "auto"))
        return err_set(e, ST_INVAL, "backend: wanted auto, cpu or cuda, found '%s'", name);
    if (gpu || (!cpu && cuda_built())) {
        struct err none = {0};
        int st = open_driver(b, config, gpu ? e : &none);
        if (!st) return open_cuda(b, config, e);
        if (gpu && st == ST_UNSUPPORTED) {
            struct err why = *e;
            return (int)err_set(e, st,
                                "backend: wanted a GPU with a driver of CUDA 13, found none ('cpu' "
                                "runs without): %s",
                                why.msg);
        }
        if (gpu || st != ST_UNSUPPORTED) return st;
    }
    return ops_cpu_open(&b->ops, b->pool, NULL, e);
}

int backend_open(struct backend *ret, const struct engine_config *config, struct err *e) {
    *ret = (struct backend){0};
    int st = cpu_pool_new(&ret->pool, config->threads, e);
    if (!st) st = open_ops(ret, config, e);
    if (st)
        backend_close(ret);
    else if (config->on_ops)
        config->on_ops(config->on_ops_arg, &ret->ops);
    return st;
}

void backend_close(struct backend *b) {
    ops_close(&b->ops);
    cpu_pool_free(b->pool);
    *b = (struct backend){0};
}
