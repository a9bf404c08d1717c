/* delta_mix_plan: see launch.h. Few rows: one launch. Else the operations it stands for, since a prompt's scan wants blocks of its
 * own and their other rows all multiprocessors. */
#include "common/num.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/delta/delta_mix_order.h"
#include "kernels/delta/delta_mix_parts.h"

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

static void add_record(const struct delta_mix_args *a, uint32_t channels, struct launch_list *ret) {
    struct launch *l = launch_add(ret, "delta_record", a, sizeof *a);
    l->grid[0] = ceil_div_u32(channels, RECORD_THREADS);
    l->grid[1] = a->rows.count;
    l->block[0] = RECORD_THREADS;
    l->early = true;
}

void delta_mix_plan(const struct delta_mix_args *a, const struct cuda_arch *arch,
                    const struct cuda_work *w, struct launch_list *ret) {
    if (!a->rows.count) return;
    if (in_one(a)) {
        add_one(a, arch, w, ret);
        return;
    }
    struct delta_mix_parts p = delta_mix_parts(a);
    conv_plan(&p.conv, arch, w, ret);
    delta_norm_plan(&p.norm, arch, w, ret);
    delta_gates_plan(&p.gates, arch, w, ret);
    if (a->rec_m) add_record(a, p.channels, ret);
    conv_store_plan(&p.store, arch, w, ret);
    delta_scan_plan(&p.scan, arch, w, ret);
    gated_norm_plan(&p.out, arch, w, ret);
}
