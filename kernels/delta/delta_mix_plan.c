/* delta_mix_plan: see launch.h. Few rows: one launch. Else the operations it stands for, since a prompt's scan wants blocks of its
 * own and their other rows all multiprocessors. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/delta/conv.h"
#include "kernels/delta/delta_gates.h"
#include "kernels/delta/delta_mix_order.h"
#include "kernels/delta/delta_norm.h"
#include "kernels/delta/delta_scan.h"
#include "kernels/delta/gated_norm.h"

/* One launch costs 8 us for a row of one stream and 15 for eight, where the six operations one after the other take 18 and 22 (H200); for eight
 * streams of a row each both take 27, and from there on the operations are quicker, whose blocks do not wait for their own three passes. */
enum { ROWS_MAX = 8, RUNS_MAX = 4, RECORD_THREADS = 256 };

static bool in_one(const struct delta_mix_args *a) {
    return a->key_dim == DELTA_MIX_DIM && a->value_dim == DELTA_MIX_DIM &&
           a->rows.count <= ROWS_MAX && a->rows.runs_count <= RUNS_MAX;
}

static void add_one(const struct delta_mix_args *a, const struct cuda_arch *arch,
                    const struct cuda_work *w, struct launch_list *ret) {
    struct delta_mix_params p = {*a, w->counters};
    uint32_t blocks = arch->sm >= 90 ? 2 : 1; // of a head: the two are a cluster
    struct launch *l =
        launch_add(ret, blocks == 2 ? "delta_mix_128_pair" : "delta_mix_128", &p, sizeof p);
    l->grid[0] = a->value_heads * blocks;
    l->grid[1] = a->rows.runs_count;
    l->block[0] = DELTA_MIX_THREADS(blocks);
    l->early = true;
    ret->counters = max_u32(ret->counters, a->rows.runs_count * a->key_heads);
}

static void add_inputs(const struct delta_mix_args *a, const struct cuda_arch *arch,
                       const struct cuda_work *w, struct launch_list *ret) {
    uint32_t channels = 2 * a->key_heads * a->key_dim + a->value_heads * a->value_dim;
    conv_plan(&(struct conv_args){.rows = a->rows,
                                  .m = a->m,
                                  .w = a->conv_w,
                                  .y = a->qkv,
                                  .state = a->conv_state,
                                  .slot_stride = a->slot_stride,
                                  .channels = channels},
              arch, w, ret);
    delta_norm_plan(&(struct delta_norm_args){.qkv = a->qkv,
                                              .rows = a->rows.count,
                                              .channels = channels,
                                              .key_heads = a->key_heads,
                                              .key_dim = a->key_dim,
                                              .q_scale = a->q_scale},
                    arch, w, ret);
    delta_gates_plan(&(struct delta_gates_args){.a = a->a,
                                                .b = a->b,
                                                .neg_a = a->neg_a,
                                                .dt_bias = a->dt_bias,
                                                .gates = a->gates,
                                                .rows = a->rows.count,
                                                .heads = a->value_heads},
                     arch, w, ret);
    if (a->rec_m) {
        struct launch *l = launch_add(ret, "delta_record", a, sizeof *a);
        l->grid[0] = ceil_div_u32(channels, RECORD_THREADS);
        l->grid[1] = a->rows.count;
        l->block[0] = RECORD_THREADS;
        l->early = true;
    }
    conv_store_plan(&(struct conv_store_args){.runs = a->rows.runs,
                                              .runs_count = a->rows.runs_count,
                                              .m = a->m,
                                              .state = a->conv_state,
                                              .slot_stride = a->slot_stride,
                                              .channels = channels,
                                              .stale = a->stale},
                    arch, w, ret);
}

void delta_mix_plan(const struct delta_mix_args *a, const struct cuda_arch *arch,
                    const struct cuda_work *w, struct launch_list *ret) {
    if (!a->rows.count) return;
    if (in_one(a)) {
        add_one(a, arch, w, ret);
        return;
    }
    add_inputs(a, arch, w, ret);
    delta_scan_plan(&(struct delta_scan_args){.runs = a->rows.runs,
                                              .runs_count = a->rows.runs_count,
                                              .rows = a->rows.count,
                                              .qkv = a->qkv,
                                              .gates = a->gates,
                                              .out = a->o,
                                              .state = a->state,
                                              .slot_stride = a->slot_stride,
                                              .key_heads = a->key_heads,
                                              .value_heads = a->value_heads,
                                              .key_dim = a->key_dim,
                                              .value_dim = a->value_dim},
                    arch, w, ret);
    gated_norm_plan(&(struct gated_norm_args){.o = a->o,
                                              .z = a->z,
                                              .w = a->norm_w,
                                              .y = a->o,
                                              .rows = a->rows.count,
                                              .heads = a->value_heads,
                                              .dim = a->value_dim,
                                              .eps = a->eps},
                    arch, w, ret);
}
