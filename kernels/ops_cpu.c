/* ops_cpu: the CPU backend's table: host memory behind the door, and the choice of a variant. */
#include "common/err.h"
#include "common/mem.h"
#include "common/mono.h"
#include "kernels/cpu.h"
#include "kernels/linear/exl3_cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void ops_fill_cpu_base(struct ops *o);
#ifdef CPU_HAVE_X86
void ops_fill_cpu_avx2(struct ops *o);
void ops_fill_cpu_avx512(struct ops *o);
#endif

static int cpu_alloc(void *ctx, uint64_t bytes, const char *what, devptr *ret, struct err *e) {
    // Untouched pages cost nothing: a cache sized for the worst case takes memory as it fills.
    void *p = bytes > SIZE_MAX / 2 ? MAP_FAILED
                                   : mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return err_set(e, ST_NOMEM, "%s: no memory for %llu bytes", what,
                       (unsigned long long)bytes);
    *ret = (uintptr_t)p;
    return ST_OK;
}

static void cpu_free(void *ctx, devptr p, uint64_t bytes) {
    if (p) munmap(cpu_ptr(p), bytes ? bytes : 1);
}

static uint64_t read_number(const char *path, const char *key) {
    unsigned long long n = UINT64_MAX;
    char line[256];
    FILE *f = fopen(path, "re");
    if (!f) return UINT64_MAX;
    while (fgets(line, sizeof line, f))
        if (!key && sscanf(line, "%llu", &n) == 1)
            break;
        else if (key && !strncmp(line, key, strlen(key)) &&
                 sscanf(line + strlen(key), "%llu", &n) == 1)
            break;
    fclose(f);
    return n;
}

// What the kernel would give without swapping, and no more than what the control group allows.
static uint64_t cpu_free_bytes(void *ctx) {
    uint64_t kib = read_number("/proc/meminfo", "MemAvailable:");
    uint64_t bytes = kib > UINT64_MAX / 1024 ? (uint64_t)1 << 32 : kib * 1024;
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", NULL);
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", NULL);
    if (limit == UINT64_MAX || used == UINT64_MAX) return bytes;
    uint64_t left = limit > used ? limit - used : 0;
    return left < bytes ? left : bytes;
}

static void cpu_write(void *ctx, devptr dst, const void *src, uint64_t bytes) {
    if (bytes) memcpy(cpu_ptr(dst), src, bytes);
}

static void cpu_read(void *ctx, void *dst, devptr src, uint64_t bytes) {
    if (bytes) memcpy(dst, cpu_ptr(src), bytes);
}

static void cpu_read_pieces(void *ctx, const struct ops_piece *v, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) cpu_read(ctx, v[i].to, v[i].from, v[i].bytes);
}

static void cpu_copy(void *ctx, devptr dst, devptr src, uint64_t bytes) {
    if (bytes) memmove(cpu_ptr(dst), cpu_ptr(src), bytes);
}

static void cpu_copy_each(void *ctx, const struct ops_copies *c) {
    for (uint32_t i = 0; i < c->count; i++)
        cpu_copy(ctx, c->dst + i * c->stride, c->src + i * c->stride, c->bytes);
}

static void cpu_fill(void *ctx, devptr p, uint32_t word, uint64_t bytes) {
    uint32_t *w = cpu_ptr(p);
    for (uint64_t i = 0; i < bytes / sizeof *w; i++) w[i] = word;
}

static int cpu_sync(void *ctx, struct err *e) {
    return ST_OK;
}

static int cpu_marks(void *ctx, bool on, struct err *e) {
    struct cpu *c = ctx;
    memset(&c->marks, 0, sizeof c->marks);
    c->marks.on = on;
    c->marks.label = OPS_LABELS_MAX; // of nothing yet
    return ST_OK;
}

static void cpu_mark(void *ctx, uint32_t label) {
    struct cpu *c = ctx;
    if (!c->marks.on) return;
    uint64_t now = mono_ns();
    if (c->marks.label < OPS_LABELS_MAX)
        c->marks.ms[c->marks.label] += (double)(now - c->marks.since_ns) / 1e6;
    c->marks.label = label;
    c->marks.since_ns = now;
}

static void cpu_marks_read(void *ctx, double ret_ms[OPS_LABELS_MAX]) {
    struct cpu *c = ctx;
    memcpy(ret_ms, c->marks.ms, sizeof c->marks.ms);
    cpu_marks(c, c->marks.on, NULL);
}

static uint64_t cpu_weight_room(void *ctx, uint64_t bytes) {
    return 0;
}

static devptr cpu_weight_put(void *ctx, devptr room, const void *host, uint64_t bytes) {
    return (uintptr_t)host;
}

static uint64_t scratch_bytes(const struct cpu *c) {
    return (uint64_t)c->threads * sizeof *c->exl3;
}

static void cpu_close(void *ctx) {
    struct cpu *c = ctx;
    cpu_free(c, (uintptr_t)c->exl3, scratch_bytes(c));
    free(c);
}

const char *const *ops_cpu_variants(void) {
    static const char *const base[] = {"base", NULL};
#ifdef CPU_HAVE_X86
    static const char *const avx2[] = {"base", "avx2", NULL};
    static const char *const avx512[] = {"base", "avx2", "avx512", NULL};
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("fma")) return base;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return avx512;
    if (__builtin_cpu_supports("avx2")) return avx2;
#endif
    return base;
}

static int pick_variant(const char *wanted, const char **ret, struct err *e) {
    const char *const *names = ops_cpu_variants();
    const char *widest = NULL;
    for (; *names; names++) {
        widest = *names;
        if (wanted && !strcmp(wanted, *names)) break;
    }
    if (wanted && !*names)
        return err_set(e, ST_INVAL, "CPU variant '%s': this machine runs up to '%s'", wanted,
                       widest);
    *ret = widest;
    return ST_OK;
}

static void fill(struct ops *o, const char *variant) {
#ifdef CPU_HAVE_X86
    if (!strcmp(variant, "avx512")) {
        ops_fill_cpu_avx512(o);
        return;
    }
    if (!strcmp(variant, "avx2")) {
        ops_fill_cpu_avx2(o);
        return;
    }
#endif
    ops_fill_cpu_base(o);
}

int ops_cpu_open(struct ops *ret, struct cpu_pool *pool, const char *variant, struct err *e) {
    const char *picked = NULL;
    int st = pick_variant(variant, &picked, e);
    if (st) return st;
    devptr scratch = 0; // untouched, and so free, until a weight is EXL3
    struct cpu cpu = {.pool = pool, .threads = cpu_pool_threads(pool)};
    st = cpu_alloc(NULL, scratch_bytes(&cpu), "scratch of the threads", &scratch, e);
    if (st) return st;
    cpu.exl3 = cpu_ptr(scratch);
    struct cpu *c = mem_calloc(1, sizeof *c);
    *c = cpu;
    *ret = (struct ops){.ctx = c,
                        .device = "cpu",
                        .variant = picked,
                        .close = cpu_close,
                        .alloc = cpu_alloc,
                        .free = cpu_free,
                        .alloc_step = 1,
                        .free_bytes = cpu_free_bytes,
                        .write = cpu_write,
                        .read = cpu_read,
                        .read_pieces = cpu_read_pieces,
                        .copy = cpu_copy,
                        .copy_each = cpu_copy_each,
                        .fill = cpu_fill,
                        .sync = cpu_sync,
                        .marks = cpu_marks,
                        .mark = cpu_mark,
                        .marks_read = cpu_marks_read,
                        .weight_room = cpu_weight_room,
                        .weight_put = cpu_weight_put};
    fill(ret, picked);
    return ST_OK;
}

void ops_close(struct ops *o) {
    if (o->close) o->close(o->ctx);
    *o = (struct ops){0};
}
