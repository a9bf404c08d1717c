/* cuda_mock: see cuda_mock.h. Device memory is host memory that is mapped when it is first touched, so cards may be large. */
#include "tests/lib/cuda_mock.h"
#include "kernels/cuda/fatbin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCKS_MAX = 64, HANDLES_MAX = 8192, GRANULE = 2 << 20, KERNELS_MAX = 512 };

struct block {
    uint64_t base, bytes;
    bool pinned;
};

struct sent { // a launch
    uint32_t kernel;
    uint64_t hash; // of its kernel, sizes and the addresses among its arguments
};

struct graph { // what was captured; of an executable one, what it launches
    struct sent *v;
    uint32_t count, room;
};

static struct {
    struct cuda_mock_config c;
    struct cuda_mock_counts n;
    struct block blocks[BLOCKS_MAX];
    bool handles[HANDLES_MAX]; // live; a handle is an index and one
    const void *ctx;           // of the device; NULL: not retained
    uint32_t shared[KERNELS_MAX];
    uint64_t launches[KERNELS_MAX];
    struct graph graphs[HANDLES_MAX]; // by handle
    struct graph capture;
    bool capturing;
} mock;

static cu_result wrong(cu_result r, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    if (!mock.n.wrong[0]) vsnprintf(mock.n.wrong, sizeof mock.n.wrong, fmt, ap);
    va_end(ap);
    return r;
}

// Counts a call; an error if it is the one that fails.
static cu_result enter(cu_result failure) {
    return ++mock.n.calls == mock.c.fail_call ? failure : CU_SUCCESS;
}

static void *take_handle(void) {
    for (uintptr_t i = 0; i < HANDLES_MAX; i++)
        if (!mock.handles[i]) {
            mock.handles[i] = true;
            mock.n.handles++;
            return (void *)(i + 1);
        }
    abort();
}

static cu_result give_handle(const void *h) {
    uintptr_t i = (uintptr_t)h - 1;
    if (i >= HANDLES_MAX || !mock.handles[i])
        return wrong(CU_ERROR_INVALID_HANDLE, "a handle that is not live is given back");
    mock.handles[i] = false;
    mock.n.handles--;
    return CU_SUCCESS;
}

// Anything but a launch.
static cu_result check_stream(cu_stream s) {
    uintptr_t i = (uintptr_t)s - 1;
    if (mock.capturing) return wrong(CU_ERROR_INVALID_VALUE, "in a capture, and no launch");
    if (!s) return wrong(CU_ERROR_INVALID_HANDLE, "work for the legacy stream");
    return i < HANDLES_MAX && mock.handles[i] ? CU_SUCCESS
                                              : wrong(CU_ERROR_INVALID_HANDLE, "no such stream");
}

// The device

static cu_result mock_init(unsigned flags) {
    return enter(CU_ERROR_NO_DEVICE);
}

static cu_result mock_driver_version(int *ret) {
    *ret = 13000;
    return enter(CU_ERROR_INVALID_VALUE);
}

static cu_result mock_error_name(cu_result r, const char **ret) {
    *ret = r == CU_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_MOCK";
    return CU_SUCCESS;
}

static cu_result mock_error_string(cu_result r, const char **ret) {
    *ret = "said by the mock";
    return CU_SUCCESS;
}

static cu_result mock_device_count(int *ret) {
    *ret = (int)mock.c.devices;
    return enter(CU_ERROR_NO_DEVICE);
}

static cu_result mock_device_get(cu_device *ret, int ordinal) {
    *ret = ordinal;
    return enter(CU_ERROR_NO_DEVICE);
}

static cu_result mock_device_name(char *ret, int bytes, cu_device d) {
    snprintf(ret, (size_t)bytes, "Mock GPU");
    return enter(CU_ERROR_INVALID_VALUE);
}

static cu_result mock_device_uuid(struct cu_uuid *ret, cu_device d) {
    for (int i = 0; i < 16; i++) ret->bytes[i] = (unsigned char)(16 * d + i);
    return enter(CU_ERROR_INVALID_VALUE);
}

static cu_result mock_device_pci(char *ret, int bytes, cu_device d) {
    snprintf(ret, (size_t)bytes, "0000:%02x:00.0", d + 1);
    return enter(CU_ERROR_INVALID_VALUE);
}

static cu_result mock_device_memory(size_t *ret, cu_device d) {
    *ret = mock.c.memory_bytes;
    return enter(CU_ERROR_INVALID_VALUE);
}

static cu_result mock_device_attribute(int *ret, int attribute, cu_device d) {
    switch (attribute) {
    case CU_ATTR_CC_MAJOR: *ret = (int)mock.c.arch.sm / 10; break;
    case CU_ATTR_CC_MINOR: *ret = (int)mock.c.arch.sm % 10; break;
    case CU_ATTR_SHARED_PER_BLOCK_OPTIN: *ret = (int)mock.c.arch.shared_max; break;
    case CU_ATTR_MULTIPROCESSOR_COUNT: *ret = (int)mock.c.arch.sm_count; break;
    case CU_ATTR_INTEGRATED: *ret = mock.c.unified; break;
    default: return wrong(CU_ERROR_INVALID_VALUE, "attribute %d", attribute);
    }
    return enter(CU_ERROR_INVALID_VALUE);
}

static cu_result mock_ctx_retain(cu_ctx *ret, cu_device d) {
    cu_result r = enter(CU_ERROR_OUT_OF_MEMORY);
    if (!r) mock.ctx = *ret = take_handle();
    return r;
}

static cu_result mock_ctx_release(cu_device d) {
    const void *ctx = mock.ctx;
    mock.ctx = NULL;
    return give_handle(ctx);
}

static cu_result mock_ctx_set(cu_ctx c) {
    return enter(CU_ERROR_INVALID_HANDLE);
}

// Modules

static cu_result mock_module_load(cu_module *ret, const void *image) {
    cu_result r = enter(CU_ERROR_OUT_OF_MEMORY);
    if (!r) *ret = take_handle();
    return r;
}

static cu_result mock_module_unload(cu_module m) {
    return give_handle(m);
}

static cu_result mock_module_function(cu_function *ret, cu_module m, const char *name) {
    cu_result r = enter(CU_ERROR_INVALID_HANDLE);
    const struct cuda_kernel *k = cuda_kernel_find(name);
    if (r) return r;
    if (!k) return CU_ERROR_NOT_FOUND;
    *ret = (void *)(uintptr_t)(k - cuda_kernels + 1);
    return CU_SUCCESS;
}

// As compiled for this card; what the driver makes of the PTX takes what the first architecture does.
static uint32_t static_shared(const struct cuda_kernel *k) {
    const struct cuda_kernel_arch *on = cuda_kernel_on(k, mock.c.arch.sm);
    return on ? on->shared_bytes : k->archs_count ? k->archs[0].shared_bytes : 0;
}

static cu_result mock_func_set(cu_function f, int attribute, int value) {
    uintptr_t i = (uintptr_t)f - 1;
    if (value < 0 || (uint32_t)value + static_shared(&cuda_kernels[i]) > mock.c.arch.shared_max)
        return wrong(CU_ERROR_INVALID_VALUE, "%s: %d bytes of shared memory", cuda_kernels[i].name,
                     value);
    mock.shared[i] = (uint32_t)value;
    return enter(CU_ERROR_INVALID_VALUE);
}

static cu_result mock_func_get(int *ret, int attribute, cu_function f) {
    const struct cuda_kernel *k = &cuda_kernels[(uintptr_t)f - 1];
    if (attribute == CU_FUNC_SHARED_STATIC) {
        *ret = (int)static_shared(k);
        return enter(CU_ERROR_INVALID_VALUE);
    }
    if (attribute != CU_FUNC_PTX_VERSION)
        return wrong(CU_ERROR_INVALID_VALUE, "function attribute %d", attribute);
    const struct cuda_kernel_arch *on = cuda_kernel_on(k, mock.c.arch.sm);
    *ret = mock.c.from_ptx || !on ? 80 : (int)on->sm;
    return enter(CU_ERROR_INVALID_VALUE);
}

// One that is to overlap the launch before, and was not compiled to wait for it.
static cu_result check_overlap(const struct cu_launch_config *c, const struct cuda_kernel *k) {
    const struct cuda_kernel_arch *on = k ? cuda_kernel_on(k, mock.c.arch.sm) : NULL;
    for (unsigned i = 0; i < c->attributes_count; i++) {
        const struct cu_launch_attribute *a = &c->attributes[i];
        if (a->id != CU_LAUNCH_OVERLAP || a->value.flag != 1)
            return wrong(CU_ERROR_INVALID_VALUE, "launch attribute %d", a->id);
        if (!on || !on->waits || mock.c.from_ptx || mock.c.arch.sm < 90)
            return wrong(CU_ERROR_INVALID_VALUE, "%s: early, and does not wait", k ? k->name : "");
        mock.n.early_launches++;
    }
    return CU_SUCCESS;
}

static cu_result check_launch(const struct cu_launch_config *c, uintptr_t i) {
    const unsigned *g = c->grid, *b = c->block;
    if (!g[0] || !g[1] || !g[2] || g[1] > 65535 || g[2] > 65535 ||
        (uint64_t)b[0] * b[1] * b[2] > 1024 || !b[0] || !b[1] || !b[2] ||
        (cuda_kernels_count && c->shared_bytes > mock.shared[i]))
        return wrong(CU_ERROR_INVALID_VALUE, "%s: grid %u %u %u, block %u %u %u, %u bytes shared",
                     cuda_kernels[i].name, g[0], g[1], g[2], b[0], b[1], b[2], c->shared_bytes);
    return check_overlap(c, cuda_kernels_count ? &cuda_kernels[i] : NULL);
}

static struct block *find(uint64_t p, uint64_t bytes, bool any_kind, bool pinned) {
    for (int i = 0; i < BLOCKS_MAX; i++) {
        struct block *b = &mock.blocks[i];
        if (b->base && p >= b->base && p + bytes <= b->base + b->bytes &&
            (any_kind || b->pinned == pinned))
            return b;
    }
    return NULL;
}

static uint64_t mix(uint64_t hash, const void *p, size_t bytes) { // FNV-1a
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)p)[i]) * 1099511628211u;
    return hash;
}

// Of an argument its addresses: what lies between its members may be anything.
static uint64_t mix_addresses(uint64_t hash, const unsigned char *p, uint32_t bytes) {
    uint64_t word;
    for (uint32_t at = 0; at + sizeof word <= bytes; at += sizeof word) {
        memcpy(&word, p + at, sizeof word);
        if (find(word, 1, true, false)) hash = mix(mix(hash, &at, sizeof at), &word, sizeof word);
    }
    return hash;
}

static struct sent sent_of(const struct cu_launch_config *c, uintptr_t i, void **params) {
    struct sent s = {.kernel = (uint32_t)i};
    uint64_t hash = mix(14695981039346656037u, &i, sizeof i);
    hash = mix(hash, c->grid, sizeof c->grid);
    hash = mix(hash, c->block, sizeof c->block);
    hash = mix(hash, &c->shared_bytes, sizeof c->shared_bytes);
    hash = mix(hash, &c->attributes_count, sizeof c->attributes_count);
    s.hash = cuda_kernels_count && cuda_kernels[i].archs_count
                 ? mix_addresses(hash, params[0], cuda_kernels[i].archs[0].params_bytes)
                 : hash;
    return s;
}

static void execute(const struct sent *s) {
    mock.n.launches++;
    mock.launches[s->kernel]++;
    mock.n.launched = mix(mock.n.launched, &s->hash, sizeof s->hash);
}

static void take_down(const struct sent *s) {
    struct graph *g = &mock.capture;
    if (g->count == g->room) {
        g->room = g->room ? 2 * g->room : 64;
        g->v = realloc(g->v, g->room * sizeof *g->v);
        if (!g->v) abort();
    }
    g->v[g->count++] = *s;
}

static cu_result mock_launch(const struct cu_launch_config *c, cu_function f, void **params,
                             void **extra) {
    uintptr_t i = (uintptr_t)f - 1;
    bool captured = mock.capturing;
    cu_result r = enter(CU_ERROR_LAUNCH_FAILED);
    mock.capturing = false;
    if (!r) r = check_stream(c->stream);
    mock.capturing = captured;
    if (r) return r;
    if (!cuda_kernels_count)
        i = 0; // a build without kernels: launches are counted all the same
    else if (i >= cuda_kernels_count)
        return wrong(CU_ERROR_INVALID_HANDLE, "launch of no kernel");
    r = check_launch(c, i);
    if (r) return r;
    struct sent s = sent_of(c, i, params);
    mock.n.launch_stream = c->stream;
    if (mock.capturing)
        take_down(&s);
    else
        execute(&s);
    return CU_SUCCESS;
}

// Memory

static cu_result take_block(uint64_t *ret, uint64_t bytes, bool pinned) {
    for (int i = 0; i < BLOCKS_MAX; i++) {
        if (mock.blocks[i].base) continue;
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return CU_ERROR_OUT_OF_MEMORY;
        mock.blocks[i] = (struct block){(uintptr_t)p, bytes, pinned};
        *(pinned ? &mock.n.pinned_bytes : &mock.n.device_bytes) += bytes;
        *ret = (uintptr_t)p;
        return CU_SUCCESS;
    }
    return wrong(CU_ERROR_OUT_OF_MEMORY, "more than %d blocks", BLOCKS_MAX);
}

static cu_result give_block(uint64_t p, bool pinned) {
    struct block *b = find(p, 1, false, pinned);
    if (!b || b->base != p)
        return wrong(CU_ERROR_INVALID_VALUE, "memory that is not live is given back");
    munmap((void *)(uintptr_t)b->base, b->bytes);
    *(pinned ? &mock.n.pinned_bytes : &mock.n.device_bytes) -= b->bytes;
    b->base = 0;
    return CU_SUCCESS;
}

static uint64_t left(void) {
    return mock.c.memory_bytes - mock.n.device_bytes;
}

static cu_result mock_mem_alloc(cu_ptr *ret, size_t bytes) {
    cu_result r = enter(CU_ERROR_OUT_OF_MEMORY);
    uint64_t whole = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    if (r) return r;
    if (!bytes) return wrong(CU_ERROR_INVALID_VALUE, "an allocation of 0 bytes");
    mock.n.allocs++;
    return whole + mock.c.hidden_bytes > left() ? CU_ERROR_OUT_OF_MEMORY
                                                : take_block(ret, whole, false);
}

static cu_result mock_mem_free(cu_ptr p) {
    return give_block(p, false);
}

static cu_result mock_mem_info(size_t *ret_free, size_t *ret_total) {
    cu_result r = enter(CU_ERROR_INVALID_VALUE);
    if (r) return r;
    *ret_free = left();
    *ret_total = mock.c.memory_bytes;
    return CU_SUCCESS;
}

static cu_result mock_host_alloc(void **ret, size_t bytes, unsigned flags) {
    cu_result r = enter(CU_ERROR_OUT_OF_MEMORY);
    uint64_t p;
    if (!r && mock.c.pinned_max && mock.n.pinned_bytes + bytes > mock.c.pinned_max)
        r = CU_ERROR_OUT_OF_MEMORY;
    if (!r) r = take_block(&p, bytes, true);
    if (r) return r;
    mock.n.host_allocs++;
    *ret = (void *)(uintptr_t)p;
    return CU_SUCCESS;
}

static cu_result mock_host_free(void *p) {
    return give_block((uintptr_t)p, true);
}

static cu_result mock_host_device_ptr(cu_ptr *ret, void *p, unsigned flags) {
    *ret = (uintptr_t)p;
    return enter(CU_ERROR_INVALID_VALUE);
}

static cu_result copy(void *dst, const void *src, size_t bytes, cu_stream s, bool to_device,
                      bool from_device) {
    cu_result r = enter(CU_ERROR_LAUNCH_FAILED);
    if (!r) r = check_stream(s);
    if (r) return r;
    // Copies to and from pageable memory wait inside the driver, so that ours go through pinned memory alone.
    if (!find((uintptr_t)dst, bytes, false, !to_device) ||
        !find((uintptr_t)src, bytes, false, !from_device))
        return wrong(CU_ERROR_INVALID_VALUE, "a copy of %zu bytes outside what was allocated",
                     bytes);
    memmove(dst, src, bytes);
    mock.n.copies++;
    return CU_SUCCESS;
}

static cu_result mock_copy_to_device(cu_ptr dst, const void *src, size_t bytes, cu_stream s) {
    return copy((void *)(uintptr_t)dst, src, bytes, s, true, false);
}

static cu_result mock_copy_to_host(void *dst, cu_ptr src, size_t bytes, cu_stream s) {
    return copy(dst, (void *)(uintptr_t)src, bytes, s, false, true);
}

static cu_result mock_copy_on_device(cu_ptr dst, cu_ptr src, size_t bytes, cu_stream s) {
    return copy((void *)(uintptr_t)dst, (void *)(uintptr_t)src, bytes, s, true, true);
}

static cu_result memset_begin(cu_ptr dst, size_t bytes, cu_stream s) {
    cu_result r = enter(CU_ERROR_LAUNCH_FAILED);
    if (!r) r = check_stream(s);
    if (!r && !find(dst, bytes, false, false))
        r = wrong(CU_ERROR_INVALID_VALUE, "a fill of %zu bytes outside what was allocated", bytes);
    if (r) return r;
    mock.n.memsets++;
    mock.n.memset_stream = s;
    return CU_SUCCESS;
}

static cu_result mock_set_bytes(cu_ptr dst, unsigned char v, size_t count, cu_stream s) {
    cu_result r = memset_begin(dst, count, s);
    if (!r) memset((void *)(uintptr_t)dst, v, count);
    return r;
}

static cu_result mock_set_words(cu_ptr dst, unsigned v, size_t count, cu_stream s) {
    cu_result r = memset_begin(dst, count * 4, s);
    uint32_t *w = (uint32_t *)(uintptr_t)dst;
    for (size_t i = 0; !r && i < count; i++) w[i] = v;
    return r;
}

// Streams, events, graphs

static cu_result mock_stream_new(cu_stream *ret, unsigned flags) {
    cu_result r = enter(CU_ERROR_OUT_OF_MEMORY);
    if (r) return r;
    mock.n.streams++;
    *ret = take_handle();
    return flags == CU_STREAM_NON_BLOCKING
               ? CU_SUCCESS
               : wrong(CU_ERROR_INVALID_VALUE, "a stream that waits for the legacy one");
}

static cu_result mock_stream_free(cu_stream s) {
    return give_handle(s);
}

static cu_result mock_stream_sync(cu_stream s) {
    cu_result r = enter(CU_ERROR_LAUNCH_FAILED);
    mock.n.syncs++;
    return r ? r : check_stream(s);
}

static cu_result mock_stream_wait(cu_stream s, cu_event e, unsigned flags) {
    cu_result r = enter(CU_ERROR_LAUNCH_FAILED);
    return r ? r : check_stream(s);
}

static cu_result mock_event_new(cu_event *ret, unsigned flags) {
    cu_result r = enter(CU_ERROR_OUT_OF_MEMORY);
    if (!r) *ret = take_handle();
    return r;
}

static cu_result mock_event_free(cu_event e) {
    return give_handle(e);
}

static cu_result mock_event_record(cu_event e, cu_stream s) {
    cu_result r = enter(CU_ERROR_LAUNCH_FAILED);
    return r ? r : check_stream(s);
}

static cu_result mock_event_record_flags(cu_event e, cu_stream s, unsigned flags) {
    if (!mock.capturing || flags != CU_EVENT_RECORD_EXTERNAL)
        return wrong(CU_ERROR_INVALID_VALUE, "an event with flags outside a capture");
    return enter(CU_ERROR_LAUNCH_FAILED);
}

static cu_result mock_event_sync(cu_event e) {
    return enter(CU_ERROR_LAUNCH_FAILED);
}

static cu_result mock_event_ms(float *ret, cu_event from, cu_event to) {
    *ret = 1;
    return enter(CU_ERROR_LAUNCH_FAILED);
}

static cu_result mock_capture_begin(cu_stream s, int mode) {
    cu_result r = enter(CU_ERROR_LAUNCH_FAILED);
    if (!r) r = check_stream(s);
    if (r) return r;
    if (mode != CU_CAPTURE_THREAD_LOCAL)
        return wrong(CU_ERROR_INVALID_VALUE, "a capture that other threads disturb");
    mock.capturing = true;
    return CU_SUCCESS;
}

static struct graph *graph_of(const void *handle) {
    return &mock.graphs[(uintptr_t)handle - 1];
}

static cu_result mock_capture_end(cu_stream s, cu_graph *ret) {
    cu_result r = enter(CU_ERROR_OUT_OF_MEMORY);
    if (!mock.capturing) return wrong(CU_ERROR_INVALID_VALUE, "the end of no capture");
    struct graph got = mock.capture;
    mock.capturing = false;
    mock.capture = (struct graph){0};
    if (r) {
        free(got.v);
        return r;
    }
    *ret = take_handle();
    *graph_of(*ret) = got;
    return CU_SUCCESS;
}

static cu_result free_graph(const void *handle) {
    cu_result r = give_handle(handle);
    if (r) return r;
    free(graph_of(handle)->v);
    *graph_of(handle) = (struct graph){0};
    return CU_SUCCESS;
}

static cu_result mock_graph_free(cu_graph g) {
    return free_graph(g);
}

static struct graph copy_of(const struct graph *g) {
    struct graph to = {.count = g->count, .room = g->count + 1};
    to.v = malloc(to.room * sizeof *to.v);
    if (!to.v) abort();
    if (g->count) memcpy(to.v, g->v, g->count * sizeof *to.v);
    return to;
}

static cu_result mock_graph_instantiate(cu_graph_exec *ret, cu_graph g, unsigned long long flags) {
    cu_result r = enter(CU_ERROR_OUT_OF_MEMORY);
    if (!r && mock.c.graph_bytes > left()) r = CU_ERROR_OUT_OF_MEMORY;
    if (r) return r;
    *ret = take_handle();
    *graph_of(*ret) = copy_of(graph_of(g));
    mock.n.graphs++;
    mock.n.device_bytes += mock.c.graph_bytes;
    return CU_SUCCESS;
}

static cu_result mock_graph_upload(cu_graph_exec g, cu_stream s) {
    cu_result r = enter(CU_ERROR_OUT_OF_MEMORY);
    return r ? r : check_stream(s);
}

static cu_result mock_graph_update(cu_graph_exec g, cu_graph from, struct cu_graph_update *ret) {
    struct graph *to = graph_of(g), *other = graph_of(from);
    cu_result r = enter(CU_ERROR_LAUNCH_FAILED);
    if (r) return r;
    bool same = to->count == other->count;
    for (uint32_t i = 0; same && i < to->count; i++) same = to->v[i].kernel == other->v[i].kernel;
    *ret = (struct cu_graph_update){.result = !same};
    if (!same) return CU_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    free(to->v);
    *to = copy_of(other);
    return CU_SUCCESS;
}

static cu_result mock_graph_launch(cu_graph_exec g, cu_stream s) {
    cu_result r = enter(CU_ERROR_LAUNCH_FAILED);
    if (!r) r = check_stream(s);
    if (r) return r;
    for (uint32_t i = 0; i < graph_of(g)->count; i++) execute(&graph_of(g)->v[i]);
    mock.n.graph_launches++;
    return CU_SUCCESS;
}

static cu_result mock_graph_exec_free(cu_graph_exec g) {
    cu_result r = free_graph(g);
    if (!r) mock.n.device_bytes -= mock.c.graph_bytes;
    return r;
}

void cuda_mock_open(struct cuda_driver *ret, const struct cuda_mock_config *c) {
    for (int i = 0; i < HANDLES_MAX; i++) free(mock.graphs[i].v);
    free(mock.capture.v);
    memset(&mock, 0, sizeof mock);
    mock.c = *c;
    if (!mock.c.arch.sm) mock.c.arch = (struct cuda_arch){90, 227 << 10, 132};
    if (!mock.c.memory_bytes) mock.c.memory_bytes = (uint64_t)16 << 30;
    if (!mock.c.devices) mock.c.devices = 1;
    if (cuda_kernels_count > KERNELS_MAX) abort();
#define FILL(field_, symbol_, args_) ret->field_ = mock_##field_;
    CUDA_DRIVER_FUNCTIONS(FILL)
#undef FILL
}

struct cuda_mock_counts cuda_mock_counts(void) {
    return mock.n;
}

void cuda_mock_forget(void) {
    mock.n.launched = 0;
}

uint64_t cuda_mock_launches(const char *kernel) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < cuda_kernels_count; i++)
        if (!strncmp(cuda_kernels[i].name, kernel, strlen(kernel))) sum += mock.launches[i];
    return sum;
}
