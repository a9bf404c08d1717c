/* device: see device.h. */
#include "kernels/cuda/device.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/cpu_pool.h"
#include "kernels/cuda/copy.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/fatbin.h"
#include "kernels/cuda/marks.h"
#include "kernels/cuda/profile.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COPY_UNIT_BYTES = 256 << 10, // of a thread's memcpy
    PIECE_ALIGN = 64,            // of pieces that are read together
    OVERLAP_SM_MIN = 90,         // launches overlap from here on
};

void cuda_check(struct cuda *c, cu_result r, const char *what) {
    c->idle = false;
    if (!r || c->failed) return;
    c->failed = true;
    cuda_driver_error(c->d, r, what, &c->trouble);
    c->trouble.st = ST_DEVICE;
}

static int fail(struct cuda *c, cu_result r, const char *what, struct err *e) {
    return cuda_driver_error(c->d, r, what, e);
}

// Opening

static int attribute(struct cuda *c, int which, int *ret, struct err *e) {
    cu_result r = c->d->device_attribute(ret, which, c->device);
    return r ? fail(c, r, "cuDeviceGetAttribute", e) : ST_OK;
}

static int read_device(struct cuda *c, struct err *e) {
    int major = 0, minor = 0, shared = 0, count = 0, integrated = 0;
    int st = attribute(c, CU_ATTR_CC_MAJOR, &major, e);
    if (!st) st = attribute(c, CU_ATTR_CC_MINOR, &minor, e);
    if (!st) st = attribute(c, CU_ATTR_SHARED_PER_BLOCK_OPTIN, &shared, e);
    if (!st) st = attribute(c, CU_ATTR_MULTIPROCESSOR_COUNT, &count, e);
    if (!st) st = attribute(c, CU_ATTR_INTEGRATED, &integrated, e);
    if (st) return st;
    cu_result r = c->d->device_name(c->name, sizeof c->name, c->device);
    if (r) return fail(c, r, "cuDeviceGetName", e);
    c->arch = (struct cuda_arch){.sm = (uint32_t)(major * 10 + minor),
                                 .shared_max = (uint32_t)shared,
                                 .sm_count = (uint32_t)count};
    c->unified = integrated != 0;
    snprintf(c->variant, sizeof c->variant, "sm_%u", c->arch.sm);
    if (c->arch.sm < cuda_archs[0].sm)
        return err_set(e, ST_UNSUPPORTED,
                       "GPU %s: wanted compute capability 8.0 or later, found %d.%d", c->name,
                       major, minor);
    return ST_OK;
}

static int open_context(struct cuda *c, uint32_t device, struct err *e) {
    int count = 0;
    cu_result r = c->d->device_count(&count);
    if (r) return fail(c, r, "cuDeviceGetCount", e);
    if (device >= (uint32_t)count)
        return err_set(e, ST_INVAL, "device: wanted a GPU below %d, found %u", count, device);
    r = c->d->device_get(&c->device, (int)device);
    if (r) return fail(c, r, "cuDeviceGet", e);
    int st = read_device(c, e);
    if (st) return st;
    cu_ctx ctx;
    r = c->d->ctx_retain(&ctx, c->device);
    if (r) return fail(c, r, "cuDevicePrimaryCtxRetain", e);
    c->ctx = ctx;
    r = c->d->ctx_set(c->ctx);
    if (!r) r = c->d->stream_new(&c->stream, CU_STREAM_NON_BLOCKING);
    return r ? fail(c, r, "cuStreamCreate", e) : ST_OK;
}

static int load_kernel(struct cuda *c, uint32_t i, struct err *e) {
    const struct cuda_kernel *k = &cuda_kernels[i];
    const struct cuda_kernel_arch *on = cuda_kernel_on(k, c->arch.sm);
    int fixed = 0, ptx = 0;
    cu_result r = c->d->module_function(&c->functions[i], c->modules[k->image], k->name);
    if (r == CU_ERROR_NOT_FOUND) { // made for other chips; their plans do not name it
        c->functions[i] = NULL;
        return ST_OK;
    }
    if (!r) r = c->d->func_get(&fixed, CU_FUNC_SHARED_STATIC, c->functions[i]);
    if (!r)
        r = c->d->func_set(c->functions[i], CU_FUNC_SHARED_MAX, (int)c->arch.shared_max - fixed);
    if (!r) r = c->d->func_get(&ptx, CU_FUNC_PTX_VERSION, c->functions[i]);
    // What the driver made of the PTX does not wait, and so may not be early.
    c->overlaps[i] = on && on->waits && ptx >= OVERLAP_SM_MIN;
    if (!r && ptx / 10 < (int)c->arch.sm / 10) c->from_ptx = (uint32_t)ptx;
    if (!r) return ST_OK;
    fail(c, r, k->name, e);
    return e ? (int)e->st : ST_DEVICE;
}

static int load_modules(struct cuda *c, struct err *e) {
    c->modules = mem_calloc(cuda_images_count + 1, sizeof *c->modules);
    c->functions = mem_calloc(cuda_kernels_count + 1, sizeof *c->functions);
    c->overlaps = mem_calloc(cuda_kernels_count + 1, sizeof *c->overlaps);
    for (uint32_t i = 0; i < cuda_images_count; i++) {
        cu_result r = c->d->module_load(&c->modules[i], cuda_images[i].data);
        if (!r) continue;
        c->modules[i] = NULL;
        fail(c, r, cuda_images[i].name, e);
        return err_prefix(e, "loading kernels");
    }
    for (uint32_t i = 0; i < cuda_kernels_count; i++) {
        int st = load_kernel(c, i, e);
        if (st) return st;
    }
    if (c->from_ptx) { // plans may name only what the PTX has
        c->arch.sm = c->from_ptx;
        snprintf(c->variant, sizeof c->variant, "ptx_%u", c->arch.sm % 1000);
    }
    return ST_OK;
}

static int open_staging(struct cuda *c, struct err *e) {
    void *p;
    cu_result r = c->d->host_alloc(&p, CUDA_PINNED_BYTES, CU_HOST_ALLOC_PORTABLE);
    if (r) return fail(c, r, "pinned staging memory", e);
    c->staging = p;
    for (uint32_t i = 0; i < CUDA_STAGING_SLOTS; i++) {
        cu_event event;
        r = c->d->event_new(&event, CU_EVENT_DISABLE_TIMING);
        if (r) return fail(c, r, "cuEventCreate", e);
        c->sent[i] = event;
    }
    return ST_OK;
}

int cuda_open(struct cuda *ret, const struct cuda_driver *d, uint32_t device, struct cpu_pool *pool,
              struct err *e) {
    struct cuda c = {.d = d, .pool = pool};
    int st = open_context(&c, device, e);
    if (!st) st = load_modules(&c, e);
    if (!st) st = open_staging(&c, e);
    if (st)
        cuda_close(&c);
    else
        *ret = c;
    return st;
}

void cuda_close(struct cuda *c) {
    cuda_profile_close(c);
    cuda_marks_close(c);
    for (uint32_t i = 0; i < CUDA_STAGING_SLOTS; i++)
        if (c->sent[i]) c->d->event_free(c->sent[i]);
    if (c->staging) c->d->host_free(c->staging);
    for (uint32_t i = 0; c->modules && i < cuda_images_count; i++)
        if (c->modules[i]) c->d->module_unload(c->modules[i]);
    if (c->stream) c->d->stream_free(c->stream);
    if (c->ctx) c->d->ctx_release(c->device);
    free(c->modules);
    free(c->functions);
    free(c->overlaps);
    *c = (struct cuda){0};
}

// Memory

uint64_t cuda_free_bytes(struct cuda *c) {
    size_t left = 0, total = 0;
    cuda_check(c, c->d->mem_info(&left, &total), "cuMemGetInfo");
    return left;
}

int cuda_alloc(struct cuda *c, uint64_t bytes, const char *what, devptr *ret, struct err *e) {
    cu_ptr p;
    cu_result r = c->d->mem_alloc(&p, bytes ? bytes : 1);
    if (r == CU_ERROR_OUT_OF_MEMORY)
        return err_set(e, ST_NOMEM, "%s: wanted %.3f GiB on %s, found %.3f GiB free", what,
                       (double)bytes / (1 << 30), c->name, (double)cuda_free_bytes(c) / (1 << 30));
    if (r) return fail(c, r, what, e);
    *ret = p;
    return ST_OK;
}

void cuda_free(struct cuda *c, devptr p) {
    if (p) cuda_check(c, c->d->mem_free(p), "cuMemFree");
}

int cuda_host_alloc(struct cuda *c, uint64_t bytes, const char *what, void **ret,
                    devptr *ret_device, struct err *e) {
    void *p;
    cu_ptr device;
    cu_result r = c->d->host_alloc(&p, bytes, CU_HOST_ALLOC_PORTABLE | CU_HOST_ALLOC_DEVICEMAP);
    if (r) return fail(c, r, what, e);
    r = c->d->host_device_ptr(&device, p, 0);
    if (r) {
        c->d->host_free(p);
        return fail(c, r, what, e);
    }
    *ret = p;
    *ret_device = device;
    return ST_OK;
}

void cuda_host_free(struct cuda *c, void *p) {
    if (p) cuda_check(c, c->d->host_free(p), "cuMemFreeHost");
}

// Copies

struct piece {
    unsigned char *dst;
    const unsigned char *src;
    uint64_t bytes;
};

static void copy_unit(void *arg, uint32_t unit, uint32_t thread) {
    const struct piece *p = arg;
    uint64_t at = (uint64_t)unit * COPY_UNIT_BYTES;
    memcpy(p->dst + at, p->src + at, min_u64(COPY_UNIT_BYTES, p->bytes - at));
}

static void copy_shared(struct cuda *c, struct piece p) {
    uint32_t units = (uint32_t)((p.bytes + COPY_UNIT_BYTES - 1) / COPY_UNIT_BYTES);
    if (units > 1 && c->pool)
        cpu_pool_run(c->pool, units, copy_unit, &p);
    else
        memcpy(p.dst, p.src, p.bytes);
}

// The next slot, once the device has taken what was in it.
static void next_slot(struct cuda *c) {
    cuda_check(c, c->d->event_record(c->sent[c->slot], c->stream), "cuEventRecord");
    c->pending[c->slot] = true;
    c->slot = (c->slot + 1) % CUDA_STAGING_SLOTS;
    c->slot_used = 0;
    if (c->pending[c->slot])
        cuda_check(c, c->d->event_sync(c->sent[c->slot]), "copy to the device");
    c->pending[c->slot] = false;
}

void cuda_write(struct cuda *c, devptr dst, const void *src, uint64_t bytes) {
    const unsigned char *from = src;
    assert(!c->recording);
    while (bytes && !c->failed && !c->measuring) {
        if (c->slot_used == CUDA_STAGING_BYTES) next_slot(c);
        uint64_t n = min_u64(bytes, CUDA_STAGING_BYTES - c->slot_used);
        unsigned char *at = c->staging + (uint64_t)c->slot * CUDA_STAGING_BYTES + c->slot_used;
        copy_shared(c, (struct piece){at, from, n});
        if (!c->failed)
            cuda_check(c, c->d->copy_to_device(dst, at, n, c->stream), "copy to the device");
        // Pieces stay aligned, so that small ones do not make later copies slow.
        c->slot_used = (uint32_t)min_u64(align_up_size(c->slot_used + n, 64), CUDA_STAGING_BYTES);
        from += n;
        dst += n;
        bytes -= n;
    }
}

static void wait_all(struct cuda *c) {
    cuda_check(c, c->d->stream_sync(c->stream), "waiting for the device");
    c->idle = true;
}

void cuda_read(struct cuda *c, void *dst, devptr src, uint64_t bytes) {
    unsigned char *to = dst, *at = c->staging + (uint64_t)CUDA_STAGING_SLOTS * CUDA_STAGING_BYTES;
    while (bytes && !c->failed) {
        uint64_t n = min_u64(bytes, CUDA_STAGING_BYTES);
        cuda_check(c, c->d->copy_to_host(at, src, n, c->stream), "copy to the host");
        if (!c->failed) wait_all(c);
        if (c->failed) return;
        copy_shared(c, (struct piece){to, at, n});
        to += n;
        src += n;
        bytes -= n;
    }
}

// All of them through the staging slot together, where it has room for them.
void cuda_read_pieces(struct cuda *c, const struct ops_piece *v, uint32_t count) {
    unsigned char *slot = c->staging + (uint64_t)CUDA_STAGING_SLOTS * CUDA_STAGING_BYTES;
    uint64_t used = 0, at = 0;
    for (uint32_t i = 0; i < count; i++) used += align_up_u64(v[i].bytes, PIECE_ALIGN);
    if (used > CUDA_STAGING_BYTES) {
        for (uint32_t i = 0; i < count; i++) cuda_read(c, v[i].to, v[i].from, v[i].bytes);
        return;
    }
    for (uint32_t i = 0; i < count && !c->failed; i++) {
        if (!v[i].bytes) continue;
        cuda_check(c, c->d->copy_to_host(slot + at, v[i].from, v[i].bytes, c->stream),
                   "copy to the host");
        at += align_up_u64(v[i].bytes, PIECE_ALIGN);
    }
    if (at && !c->failed) wait_all(c);
    at = 0;
    for (uint32_t i = 0; i < count && !c->failed; i++) {
        memcpy(v[i].to, slot + at, v[i].bytes);
        at += align_up_u64(v[i].bytes, PIECE_ALIGN);
    }
}

void cuda_copy_each(struct cuda *c, const struct ops_copies *o) {
    struct launch_list l = {.count = 0};
    struct copy_params p = {o->dst, o->src, o->bytes, o->stride};
    uint64_t bytes = o->bytes;
    if (!bytes || !o->count) return;
    struct launch *n = launch_add(&l, "copy", &p, sizeof p);
    uint64_t threads = bytes / COPY_WORD_BYTES + 1;
    n->grid[0] = (uint32_t)min_u64((threads + COPY_THREADS - 1) / COPY_THREADS, COPY_BLOCKS_MAX);
    n->grid[1] = o->count;
    n->block[0] = COPY_THREADS;
    n->early = true;
    cuda_profile_name(c, "copy", 2 * bytes * o->count);
    cuda_launch(c, "copy", &l);
}

void cuda_copy(struct cuda *c, devptr dst, devptr src, uint64_t bytes) {
    cuda_copy_each(c, &(struct ops_copies){.dst = dst, .src = src, .bytes = bytes, .count = 1});
}

void cuda_fill(struct cuda *c, devptr dst, uint32_t word, uint64_t bytes) {
    assert(bytes % 4 == 0 && !c->recording);
    if (bytes && !c->failed && !c->measuring)
        cuda_check(c, c->d->set_words(dst, word, bytes / 4, c->stream), "fill on the device");
}

int cuda_sync(struct cuda *c, struct err *e) {
    if (!c->failed && !c->idle) wait_all(c);
    if (!c->failed) return ST_OK;
    return err_set(e, ST_DEVICE, "%s: %s", c->name, c->trouble.msg);
}

// Launches

static void launch_one(struct cuda *c, const char *op, const struct launch *l) {
    const struct cuda_kernel *k = cuda_kernel_find(l->kernel);
    cu_function f = k ? c->functions[k - cuda_kernels] : NULL;
    if (!f && cuda_built()) {
        c->failed = true;
        err_set(&c->trouble, ST_DEVICE, "%s: kernel '%s' was not compiled for %s", op, l->kernel,
                c->variant);
        return;
    }
    assert(!k || k->archs_count == 0 || k->archs[0].params_bytes == l->params_bytes);
    void *params[] = {(void *)l->params};
    bool overlaps = l->early && k && c->overlaps[k - cuda_kernels] && !c->profile;
    struct cu_launch_attribute overlap = {.id = CU_LAUNCH_OVERLAP, .value.flag = 1};
    struct cu_launch_config config = {.grid = {l->grid[0], l->grid[1], l->grid[2]},
                                      .block = {l->block[0], l->block[1], l->block[2]},
                                      .shared_bytes = l->shared_bytes,
                                      .stream = c->stream,
                                      .attributes = &overlap,
                                      .attributes_count = overlaps};
    cuda_check(c, c->d->launch(&config, f, params, NULL), l->kernel);
}

void cuda_launch(struct cuda *c, const char *op, const struct launch_list *l) {
    if (c->measuring) {
        c->need_scratch_bytes = max_u64(c->need_scratch_bytes, l->scratch_bytes);
        c->need_counters = max_u32(c->need_counters, l->counters);
        c->recorded += l->count;
        return;
    }
    assert(c->recording_early ||
           (l->scratch_bytes <= c->scratch_bytes && l->counters <= c->counters));
    if (c->recording) c->recorded += l->count;
    for (uint32_t i = 0; i < l->count && !c->failed; i++) launch_one(c, op, &l->launches[i]);
    if (c->recording && c->profile && !c->failed) cuda_profile_mark(c);
}
