/* driver: see driver.h. */
#include "kernels/cuda/driver.h"
#include "common/err.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    const char *symbol;
    size_t at; // in struct cuda_driver
};

static const struct entry entries[] = {
#define CUDA_DRIVER_ENTRY(field_, symbol_, args_) {symbol_, offsetof(struct cuda_driver, field_)},
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_ENTRY)
#undef CUDA_DRIVER_ENTRY
};

static int find_all(struct cuda_driver *ret, void *library, struct err *e) {
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *f = dlsym(library, entries[i].symbol);
        if (!f)
            return err_set(e, ST_UNSUPPORTED,
                           "CUDA driver: wanted %s in libcuda.so.1, found none; it is too old",
                           entries[i].symbol);
        memcpy((char *)ret + entries[i].at, &f, sizeof f);
    }
    return ST_OK;
}

int cuda_driver_open(struct cuda_driver *ret, struct err *e) {
    struct cuda_driver d;
    // The driver reads it in cuInit; by default it loads a kernel at its first use, which takes memory in a round.
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return err_set(e, ST_UNSUPPORTED, "CUDA driver: %s", dlerror());
    int st = find_all(&d, library, e);
    if (st) {
        dlclose(library);
        return st;
    }
    // From here on the library stays open: it has threads and exit handlers of its own.
    cu_result r = d.init(0);
    int count = 0;
    if (!r) r = d.device_count(&count);
    if (r) {
        struct err why = {0};
        cuda_driver_error(&d, r, "cuInit", &why);
        return err_set(e, ST_UNSUPPORTED, "CUDA driver: %s", why.msg);
    }
    if (!count) return err_set(e, ST_UNSUPPORTED, "CUDA driver: it sees no device");
    *ret = d;
    return ST_OK;
}

int cuda_driver_error(const struct cuda_driver *d, cu_result r, const char *what, struct err *e) {
    const char *name = NULL, *text = NULL;
    d->error_name(r, &name);
    d->error_string(r, &text);
    return (int)err_set(e, r == CU_ERROR_OUT_OF_MEMORY ? ST_NOMEM : ST_DEVICE, "%s: %s (%d): %s",
                        what, name ? name : "unknown error", r, text ? text : "no text");
}
