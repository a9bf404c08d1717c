/* ops_ref: see ops_ref.h. */
#include "tests/lib/ops_ref.h"
#include "common/err.h"
#include "common/mem.h"
#include "kernels/cuda/plans.h"
#include "kernels/cuda/refs.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

static int alloc_ref(void *ctx, uint64_t bytes, const char *what, devptr *ret, struct err *e) {
    *ret = (uintptr_t)mem_calloc(1, bytes);
    return ST_OK;
}

static void free_ref(void *ctx, devptr p, uint64_t bytes) {
    free(refs_ptr(p));
}

static void write_ref(void *ctx, devptr dst, const void *src, uint64_t bytes) {
    memcpy(refs_ptr(dst), src, bytes);
}

static void read_ref(void *ctx, void *dst, devptr src, uint64_t bytes) {
    memcpy(dst, refs_ptr(src), bytes);
}

static void copy_ref(void *ctx, devptr dst, devptr src, uint64_t bytes) {
    memmove(refs_ptr(dst), refs_ptr(src), bytes);
}

static void copy_each_ref(void *ctx, const struct ops_copies *c) {
    for (uint32_t i = 0; i < c->count; i++)
        copy_ref(ctx, c->dst + i * c->stride, c->src + i * c->stride, c->bytes);
}

static int sync_ref(void *ctx, struct err *e) {
    return ST_OK;
}

static uint64_t experts_room_ref(void *ctx, const struct experts_args *a) {
    return 1;
}

static void close_ref(void *ctx) {}

#define OPS_REF(op)                                                                                \
    static void op##_of_table(void *ctx, const struct op##_args *a) {                              \
        op##_ref(a);                                                                               \
    }
PLANS_ALL(OPS_REF)

void ops_ref_put(struct ops *o) {
#define OPS_FILL(op) o->op = op##_of_table;
    PLANS_ALL(OPS_FILL)
}

void ops_ref_open(struct ops *ret) {
    *ret = (struct ops){.device = "twins",
                        .variant = "sm_90",
                        .close = close_ref,
                        .alloc = alloc_ref,
                        .free = free_ref,
                        .write = write_ref,
                        .read = read_ref,
                        .copy = copy_ref,
                        .copy_each = copy_each_ref,
                        .sync = sync_ref,
                        .experts_room = experts_room_ref};
    ops_ref_put(ret);
}
