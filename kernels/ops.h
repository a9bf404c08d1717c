/* ops: the one table of device operations. The engine is written over it, once; a backend is a table.
 *
 * Memory is reached through the table alone (devptr is an integer). Operations are issued in order and may run behind
 * the caller; read and sync wait for all before them. Arguments are copied at the call, arrays in host memory too
 * (linear's parts). An operation does not fail: trouble of the device is kept and comes out of sync, once and for good.
 *
 * Exactness (kernels/kernels.md): each row's bits depend on that row, its own stream's state and the weights alone,
 * never on the other rows of the call, the threads or the vector width. Each operation's header says its order.
 *
 * One thread, the engine's. Calls may use threads of their own inside. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/types.h"

struct cuda_driver;
struct cuda_graph;
struct err;
struct cpu_pool;
struct attn_args;
struct conv_args;
struct conv_store_args;
struct delta_commit_args;
struct delta_gates_args;
struct delta_mix_args;
struct delta_norm_args;
struct delta_scan_args;
struct draft_attn_args;
struct draft_conv_args;
struct draft_gather_args;
struct draft_keep_args;
struct draft_rotate_args;
struct draft_scale_args;
struct draft_top_args;
struct draw_args;
struct embed_args;
struct expert_sum_args;
struct experts_args;
struct gated_norm_args;
struct kv_append_args;
struct linear_args;
struct q4_linear_args;
struct q4_pack_args;
struct rmsnorm_args;
struct rope_args;
struct router_args;
struct swiglu_args;

// Device memory that operations use while they run. Counters are 0 between any two operations.
struct ops_work {
    uint64_t scratch_bytes, counter_bytes;
};

struct ops_piece { // of what is read
    void *to;
    devptr from;
    uint64_t bytes;
};

struct ops_copies { // count pieces, each `stride` bytes behind the one before on either side
    devptr dst, src;
    uint64_t bytes, stride;
    uint32_t count;
};

enum { OPS_TIME_NAME_BYTES = 40, OPS_MARKS_MAX = 4096, OPS_LABELS_MAX = 8 };

struct ops_time { // of all operations of one name
    char name[OPS_TIME_NAME_BYTES];
    uint32_t calls;
    double ms;
    uint64_t bytes; // of the weights they read, or of what they copy; 0: not counted
};

struct ops {
    void *ctx;
    const char *device;  // "cpu", or the GPU's name
    const char *variant; // "avx512", "sm_90a": what was picked; never changes a bit on the CPU
    void (*close)(void *ctx);

    // Memory, its contents undefined. ST_NOMEM names what, wanted and left.
    int (*alloc)(void *ctx, uint64_t bytes, const char *what, devptr *ret, struct err *e);
    void (*free)(void *ctx, devptr p, uint64_t bytes);
    uint64_t alloc_step;               // memory is given in multiples of it
    uint64_t (*free_bytes)(void *ctx); // what a further alloc may take
    void (*write)(void *ctx, devptr dst, const void *src, uint64_t bytes);
    void (*read)(void *ctx, void *dst, devptr src, uint64_t bytes);
    void (*read_pieces)(void *ctx, const struct ops_piece *v, uint32_t count); // waits once
    void (*copy)(void *ctx, devptr dst, devptr src, uint64_t bytes); // that do not overlap
    void (*copy_each)(void *ctx, const struct ops_copies *c);
    void (*fill)(void *ctx, devptr p, uint32_t word, uint64_t bytes); // bytes: a multiple of 4
    int (*sync)(void *ctx, struct err *e);                            // ST_DEVICE

    // A device with memory of its own (not NULL): pinned host memory that operations read in place, slower than their own.
    int (*host_alloc)(void *ctx, uint64_t bytes, const char *what, void **ret, devptr *ret_device,
                      struct err *e);
    void (*host_free)(void *ctx, void *p);
    uint64_t pinned_bytes; // that the table itself holds
    bool unified;          // its memory is the host's: there is nothing to gain by host_alloc

    // What operations use while they run, where they need any (not NULL). measure(true): until measure(false), operations,
    // write, copy and fill do nothing but note what they would need, which work_need then tells. work_give hands it over
    // and zeroes the counters; until the next call of it the memory is the operations' own.
    void (*measure)(void *ctx, bool on);
    struct ops_work (*work_need)(void *ctx);
    void (*work_give)(void *ctx, devptr scratch, devptr counters, struct ops_work size);

    /* Operations taken down once and run again by one call (not NULL where the backend has it); kernels/cuda/graph.h. Between begin
     * and end operations and copies alone, and none of them happens. early: addresses do not matter yet, and memory for running it
     * is taken; a later begin and end of the same operations at their addresses takes none. graph_end: *io NULL makes one; on
     * failure it is freed and NULL. ST_NOMEM, ST_DEVICE. */
    int (*graph_begin)(void *ctx, bool early, struct err *e);
    int (*graph_end)(void *ctx, struct cuda_graph **io, struct err *e);
    void (*graph_run)(void *ctx, const struct cuda_graph *g);
    void (*graph_free)(void *ctx, struct cuda_graph *g); // NULL is fine

    // Where graphs are: between profile(true) and profile(false) they are taken down with marks that keep their operations apart, and
    // profile_read tells how long those of the last one took, when it has run and was waited for. ST_NOMEM, ST_DEVICE.
    int (*profile)(void *ctx, bool on, struct err *e);
    uint32_t (*profile_read)(void *ctx, struct ops_time *ret, uint32_t max);

    /* Parts of rounds apart, for measurements: between marks(true) and marks(false) the time from one mark to the next is `label`'s, by the
     * device's clock where it has one: it begins when all that was sent before is done. marks_read, behind a sync: the sums
     * of the labels, which begin anew. At most OPS_MARKS_MAX marks between two of it. ST_NOMEM, ST_DEVICE. */
    int (*marks)(void *ctx, bool on, struct err *e);
    void (*mark)(void *ctx, uint32_t label); // nothing while they are off
    void (*marks_read)(void *ctx, double ret_ms[OPS_LABELS_MAX]);

    // Weights of the checkpoint. weight_room: bytes of device memory that one takes, 0 where the device reads the
    // host's mapping in place. weight_put makes it readable, at `room` if that is not 0; the mapping must outlive it.
    uint64_t (*weight_room)(void *ctx, uint64_t bytes);
    devptr (*weight_put)(void *ctx, devptr room, const void *host, uint64_t bytes);

    void (*embed)(void *ctx, const struct embed_args *a);
    void (*rmsnorm)(void *ctx, const struct rmsnorm_args *a);
    void (*linear)(void *ctx, const struct linear_args *a);
    void (*swiglu)(void *ctx, const struct swiglu_args *a);
    void (*rope)(void *ctx, const struct rope_args *a);
    void (*kv_append)(void *ctx, const struct kv_append_args *a);
    void (*attn)(void *ctx, const struct attn_args *a);
    void (*conv)(void *ctx, const struct conv_args *a);
    void (*conv_store)(void *ctx, const struct conv_store_args *a);
    void (*delta_gates)(void *ctx, const struct delta_gates_args *a);
    void (*delta_norm)(void *ctx, const struct delta_norm_args *a);
    void (*delta_scan)(void *ctx, const struct delta_scan_args *a);
    void (*gated_norm)(void *ctx, const struct gated_norm_args *a);
    // Several of these as one; NULL: they are issued one by one, which gives the same bits.
    void (*delta_mix)(void *ctx, const struct delta_mix_args *a);
    void (*delta_commit)(void *ctx, const struct delta_commit_args *a);
    void (*router)(void *ctx, const struct router_args *a);
    // Bytes of scratch that experts needs for up to a->rows rows of these sizes; looks at sizes alone.
    uint64_t (*experts_room)(void *ctx, const struct experts_args *a);
    void (*experts)(void *ctx, const struct experts_args *a);
    void (*expert_sum)(void *ctx, const struct expert_sum_args *a);
    void (*draw)(void *ctx, const struct draw_args *a); // NULL: rows are drawn from on the host

    // Of drafters (kernels/draft/).
    void (*draft_attn)(void *ctx, const struct draft_attn_args *a);
    void (*draft_keep)(void *ctx, const struct draft_keep_args *a);
    void (*draft_rotate)(void *ctx, const struct draft_rotate_args *a);
    void (*draft_conv)(void *ctx, const struct draft_conv_args *a);
    void (*draft_gather)(void *ctx, const struct draft_gather_args *a);
    void (*draft_scale)(void *ctx, const struct draft_scale_args *a);
    void (*draft_top)(void *ctx, const struct draft_top_args *a);
    void (*q4_pack)(void *ctx, const struct q4_pack_args *a);
    void (*q4_linear)(void *ctx, const struct q4_linear_args *a);
    bool
        exl3_views; // linear takes views of some rows of an EXL3 weight (weight_rows, types.h); of plain ones it always does
};

// The CPU backend. variant: NULL for the widest this machine has, or one of the names ops_cpu_variants gives (ST_INVAL
// by name). The pool must outlive it.
int ops_cpu_open(struct ops *ret, struct cpu_pool *pool, const char *variant, struct err *e);

struct ops_cuda_config {
    const struct cuda_driver *driver; // must outlive the table
    uint32_t device;                  // its number among those the driver shows
    struct cpu_pool *pool;            // for copies; must outlive the table
    bool partial; // for tests of single operations: those that have no kernel are NULL in the table
};
// The CUDA backend. ST_UNSUPPORTED names an operation that has no kernel, or a GPU too old; ST_DEVICE, ST_NOMEM.
int ops_cuda_open(struct ops *ret, const struct ops_cuda_config *c, struct err *e);
// The same without a GPU, for what a card would need: memory is never had, and operations can be measured alone. sm: 80, 86,
// 89, 90, 100 or 120 (ST_INVAL); room: what free_bytes says.
int ops_cuda_plan_open(struct ops *ret, uint32_t sm, uint64_t room, bool unified, struct err *e);
static inline void ops_mark(const struct ops *o, uint32_t label) {
    if (o->mark) o->mark(o->ctx, label);
}
void ops_close(struct ops *o); // zeroed is fine
// Names of the variants this machine can run, narrowest first; the list ends with NULL.
const char *const *ops_cpu_variants(void);
