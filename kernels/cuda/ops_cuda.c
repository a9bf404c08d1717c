/* ops_cuda: the CUDA backend's table: each operation is planned and launched. */
#include "common/err.h"
#include "common/mem.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/marks.h"
#include "kernels/cuda/plans.h"
#include "kernels/cuda/profile.h"
#include "kernels/ops.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void name_op(struct cuda *c, const char *op, const void *args) {
    if (!strcmp(op, "linear"))
        cuda_profile_linear(c, args);
    else if (!strcmp(op, "q4_linear"))
        cuda_profile_q4(c, args);
    else
        cuda_profile_name(c, op, 0);
}

#define CUDA_OP(op_)                                                                               \
    static void op_##_cuda(void *ctx, const struct op_##_args *a) {                                \
        struct cuda *c = ctx;                                                                      \
        struct launch_list l;                                                                      \
        l.count = 0;                                                                               \
        l.scratch_bytes = 0;                                                                       \
        l.counters = 0;                                                                            \
        op_##_plan(a, &c->arch, &c->work, &l);                                                     \
        if (c->profile) name_op(c, #op_, a);                                                       \
        cuda_launch(c, #op_, &l);                                                                  \
    }
PLANS_ALL(CUDA_OP)
PLANS_DRAFT(CUDA_OP)

// Its rows lie in the work memory that all operations share.
static uint64_t experts_room_cuda(void *ctx, const struct experts_args *a) {
    return 0;
}

// What a working table must have.
static const struct {
    const char *name;
    size_t at;
} wanted[] = {
#define WANTED(op_)                                                                                \
    { #op_, offsetof(struct ops, op_) }
    WANTED(embed),      WANTED(rmsnorm),     WANTED(linear),       WANTED(swiglu),
    WANTED(rope),       WANTED(kv_append),   WANTED(attn),         WANTED(conv),
    WANTED(conv_store), WANTED(delta_gates), WANTED(delta_norm),   WANTED(delta_scan),
    WANTED(gated_norm), WANTED(router),      WANTED(experts_room), WANTED(experts),
    WANTED(expert_sum),
#undef WANTED
};

static int check_complete(const struct ops *o, struct err *e) {
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void (*f)(void);
        memcpy(&f, (const char *)o + wanted[i].at, sizeof f);
        if (!f)
            return err_set(e, ST_UNSUPPORTED,
                           "CUDA backend: wanted a kernel for every operation, found none for '%s'",
                           wanted[i].name);
    }
    return ST_OK;
}

static void close_cuda(void *ctx) {
    cuda_close(ctx);
    free(ctx);
}

static int alloc_cuda(void *ctx, uint64_t bytes, const char *what, devptr *ret, struct err *e) {
    return cuda_alloc(ctx, bytes, what, ret, e);
}

static void free_cuda(void *ctx, devptr p, uint64_t bytes) {
    cuda_free(ctx, p);
}

static uint64_t free_bytes_cuda(void *ctx) {
    return cuda_free_bytes(ctx);
}

static void write_cuda(void *ctx, devptr dst, const void *src, uint64_t bytes) {
    cuda_write(ctx, dst, src, bytes);
}

static void read_cuda(void *ctx, void *dst, devptr src, uint64_t bytes) {
    cuda_read(ctx, dst, src, bytes);
}

static void read_pieces_cuda(void *ctx, const struct ops_piece *v, uint32_t count) {
    cuda_read_pieces(ctx, v, count);
}

static void copy_cuda(void *ctx, devptr dst, devptr src, uint64_t bytes) {
    cuda_copy(ctx, dst, src, bytes);
}

static void copy_each_cuda(void *ctx, const struct ops_copies *c) {
    cuda_copy_each(ctx, c);
}

static void fill_cuda(void *ctx, devptr p, uint32_t word, uint64_t bytes) {
    cuda_fill(ctx, p, word, bytes);
}

static int sync_cuda(void *ctx, struct err *e) {
    return cuda_sync(ctx, e);
}

static int host_alloc_cuda(void *ctx, uint64_t bytes, const char *what, void **ret,
                           devptr *ret_device, struct err *e) {
    return cuda_host_alloc(ctx, bytes, what, ret, ret_device, e);
}

static void host_free_cuda(void *ctx, void *p) {
    cuda_host_free(ctx, p);
}

static void measure_cuda(void *ctx, bool on) {
    struct cuda *c = ctx;
    c->measuring = on;
    if (!on) return;
    c->need_scratch_bytes = 0;
    c->need_counters = 0;
}

static struct ops_work work_need_cuda(void *ctx) {
    const struct cuda *c = ctx;
    return (struct ops_work){c->need_scratch_bytes, c->need_counters * sizeof(uint32_t)};
}

static void work_give_cuda(void *ctx, devptr scratch, devptr counters, struct ops_work size) {
    struct cuda *c = ctx;
    c->work = (struct cuda_work){scratch, counters};
    c->scratch_bytes = size.scratch_bytes;
    c->counters = (uint32_t)(size.counter_bytes / sizeof(uint32_t));
    cuda_fill(c, counters, 0, size.counter_bytes);
}

static int graph_begin_cuda(void *ctx, bool early, struct err *e) {
    return cuda_graph_begin(ctx, early, e);
}

static int graph_end_cuda(void *ctx, struct cuda_graph **io, struct err *e) {
    return cuda_graph_end(ctx, io, e);
}

static void graph_run_cuda(void *ctx, const struct cuda_graph *g) {
    cuda_graph_run(ctx, g);
}

static void graph_free_cuda(void *ctx, struct cuda_graph *g) {
    cuda_graph_free(ctx, g);
}

static int profile_cuda(void *ctx, bool on, struct err *e) {
    if (on) return cuda_profile_open(ctx, e);
    cuda_profile_close(ctx);
    return ST_OK;
}

static uint32_t profile_read_cuda(void *ctx, struct ops_time *ret, uint32_t max) {
    return cuda_profile_read(ctx, ret, max);
}

static int marks_cuda(void *ctx, bool on, struct err *e) {
    if (on) return cuda_marks_open(ctx, e);
    cuda_marks_close(ctx);
    return ST_OK;
}

static void mark_cuda(void *ctx, uint32_t label) {
    cuda_mark(ctx, label);
}

static void marks_read_cuda(void *ctx, double ret_ms[OPS_LABELS_MAX]) {
    cuda_marks_read(ctx, ret_ms);
}

static uint64_t weight_room_cuda(void *ctx, uint64_t bytes) {
    return bytes;
}

static devptr weight_put_cuda(void *ctx, devptr room, const void *host, uint64_t bytes) {
    cuda_write(ctx, room, host, bytes);
    return room;
}

static void fill_table(struct ops *o, struct cuda *c) {
    *o = (struct ops){.ctx = c,
                      .device = c->name,
                      .variant = c->variant,
                      .close = close_cuda,
                      .alloc = alloc_cuda,
                      .free = free_cuda,
                      .alloc_step = CUDA_ALLOC_STEP,
                      .free_bytes = free_bytes_cuda,
                      .write = write_cuda,
                      .read = read_cuda,
                      .read_pieces = read_pieces_cuda,
                      .copy = copy_cuda,
                      .copy_each = copy_each_cuda,
                      .fill = fill_cuda,
                      .sync = sync_cuda,
                      .host_alloc = host_alloc_cuda,
                      .host_free = host_free_cuda,
                      .pinned_bytes = CUDA_PINNED_BYTES,
                      .unified = c->unified,
                      .measure = measure_cuda,
                      .work_need = work_need_cuda,
                      .work_give = work_give_cuda,
                      .graph_begin = graph_begin_cuda,
                      .graph_end = graph_end_cuda,
                      .graph_run = graph_run_cuda,
                      .graph_free = graph_free_cuda,
                      .profile = profile_cuda,
                      .profile_read = profile_read_cuda,
                      .marks = marks_cuda,
                      .mark = mark_cuda,
                      .marks_read = marks_read_cuda,
                      .weight_room = weight_room_cuda,
                      .weight_put = weight_put_cuda};
#define CUDA_FILL(op_) o->op_ = op_##_cuda;
    o->experts_room = experts_room_cuda;
    PLANS_ALL(CUDA_FILL)
    PLANS_DRAFT(CUDA_FILL)
#undef CUDA_FILL
}

int ops_cuda_open(struct ops *ret, const struct ops_cuda_config *config, struct err *e) {
    struct cuda cuda = {0};
    struct ops o;
    fill_table(&o, &cuda);
    if (!cuda_built() && !config->partial)
        return err_set(
            e, ST_UNSUPPORTED,
            "CUDA backend: this build has no kernels, because nvcc was not found for it");
    int st = config->partial ? ST_OK : check_complete(&o, e);
    if (!st) st = cuda_open(&cuda, config->driver, config->device, config->pool, e);
    if (st) return st;
    struct cuda *c = mem_calloc(1, sizeof *c);
    *c = cuda;
    fill_table(ret, c);
    return ST_OK;
}

static uint64_t plan_room(void *ctx) {
    const struct cuda *c = ctx;
    return c->plan_room;
}

// Launches are counted, for the memory that a driver would take.
static int plan_graph_begin(void *ctx, bool early, struct err *e) {
    struct cuda *c = ctx;
    c->measuring = true;
    c->recorded = 0;
    return ST_OK;
}

static int plan_graph_end(void *ctx, struct cuda_graph **io, struct err *e) {
    struct cuda *c = ctx;
    uint64_t bytes = c->recorded * CUDA_GRAPH_LAUNCH_BYTES;
    if (!*io) *io = mem_calloc(1, sizeof **io);
    (*io)->launches = c->recorded;
    c->plan_room = c->plan_room > bytes ? c->plan_room - bytes : 0;
    return ST_OK;
}

static int plan_sync(void *ctx, struct err *e) {
    return ST_OK;
}

int ops_cuda_plan_open(struct ops *ret, uint32_t sm, uint64_t room, bool unified, struct err *e) {
    const struct cuda_arch *arch = cuda_archs;
    while (arch->sm && arch->sm != sm) arch++;
    if (!arch->sm)
        return err_set(e, ST_INVAL, "GPU: wanted sm 80, 86, 89, 90, 100 or 120, found %u", sm);
    struct cuda *c = mem_calloc(1, sizeof *c);
    *c = (struct cuda){.arch = *arch, .unified = unified, .plan_room = room, .measuring = true};
    snprintf(c->name, sizeof c->name, "a GPU to be");
    snprintf(c->variant, sizeof c->variant, "sm_%u", sm);
    fill_table(ret, c);
    ret->free_bytes = plan_room;
    ret->sync = plan_sync;
    ret->close = free;
    ret->graph_begin = plan_graph_begin;
    ret->graph_end = plan_graph_end;
    ret->profile = NULL;
    ret->marks = NULL;
    int st = check_complete(ret, e);
    if (st) ops_close(ret);
    return st;
}
