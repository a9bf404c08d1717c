/* model_qwen3_5: the forward of the dense and of the mixture-of-experts model over the table of operations, and the device memory it works in.
 *
 * Per stream it keeps, in the slot of that stream: for each DeltaNet layer the matrix S of every value head and the last
 * inputs of the convolution, in one block per slot (so that saving a state is one copy); for each attention layer keys
 * and values in pages of one pool. A run that starts at position 0 starts from nothing, whatever the slot held.
 * Engine thread only. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/draft/draft.h"
#include "kernels/ops.h"
#include "kernels/types.h"
#include "worker/engine/rope_rule.h"
#include "worker/engine/weights.h"

struct carve;
struct checkpoint;
struct err;
struct model_config;

struct round;

struct model_limits {
    uint32_t rows_max;        // of a round
    uint32_t slots, pages;    // streams; KV pages of them all, branches' included
    uint32_t pages_per_slot;  // of the longest stream
    uint32_t branch_pages;    // of pages, the last: MODEL_BRANCH_PAGES of each slot, or 0
    uint32_t head_rows_max;   // rows that go through the head at once
    uint32_t record_rows_max; // of windows
    enum dtype kv_dtype;
};

// Of a row that is drawn on the device: the id, and the best ids and their logits.
enum { MODEL_DRAW_WORDS = 1 + 2 * DRAFT_TOP_MAX };

/* A branch: rows beside a stream's window that begin with the window's first row again and go on otherwise. It starts from the
 * stream's state, as every recorded run does, and reads the stream's pages up to the one that it begins in; from there on it has
 * pages of its own, under a place of its own in the page table. */
enum { MODEL_BRANCH_ROWS_MAX = KV_PAGE_TOKENS, MODEL_BRANCH_PAGES = 2 };

struct model_taps {         // rows that a forward keeps for a drafter
    const uint32_t *layers; // residual rows behind the MLPs of these layers, in this order
    uint32_t count;
    bool final; // rows behind the final norm, of every row of the round
};

struct model {
    const struct ops *ops;
    const struct checkpoint *ckpt;
    const struct model_config *cfg;
    struct model_limits lim;
    struct rope_rule rope;
    float *freq; // [rope.pairs]
    struct weights w;
    bool scratch_disjoint; // mixers and MLP have rows of their own
    bool
        spoil_dead; // debug: rows that nobody may read again are filled with NaN between mixer and MLP and between layers
    bool stale_conv; // planted fault: the first DeltaNet layer keeps an old row at chunk borders
    bool short_s,
        short_conv;   // ... a commit passes its matrices, or its convolution, one row too few
    bool lost_branch; // ... what model_keep_branch is to copy stays where it was
    bool window_rope; // ... rows of windows behind the first are rotated one position too far
    // derived widths
    uint32_t q_width, kv_width, key_width, value_width, channels;
    uint32_t full_layers, delta_layers;
    uint64_t slot_bytes, conv_bytes, s_bytes; // state of a slot; of one layer in it
    uint64_t page_bytes;                      // of one layer, keys alone
    // device memory, by model_carve
    devptr page_table, kv, state;
    devptr h, x, angles;
    devptr shared; // where the rows of mixers and MLP begin
    uint64_t shared_bytes;
    struct {
        devptr qg, k, v, o;
    } attn;
    struct {
        devptr m, z, b, a, qkv, gates, o;
    } delta;
    struct {
        devptr gate, up; // with experts: of the shared one
    } mlp;
    struct {
        devptr logits, gate, picks, weights; // of the router; the shared expert's gate
        devptr routed, shared;               // answers
        devptr scratch;                      // the operation's own
        devptr first;                        // of all these
        uint64_t bytes;
    } moe;
    devptr head_x, logits;
    devptr draw_ids, draw_used;                 // where the device draws (kernels/sample/draw.h)
    struct ops_work work;                       // what the operations need, by model_measure_work
    uint32_t work_rows, work_slots, work_pages; // of the limits it was measured for
    bool work_more;                             // with a drafter's operations
    devptr work_scratch, work_counters;
    struct model_taps taps;                         // before model_carve
    devptr tap_rows;                                // [taps.count][rows_max, D] f32
    devptr tap_final;                               // [rows_max, D] f32
    void (*carve_more)(void *arg, struct carve *c); // the drafter's memory; may be NULL
    void (*plan_more)(void *arg);                   // its operations, to be measured; may be NULL
    int (*record_more)(void *arg, bool early, struct err *e); // its graphs; may be NULL
    void *carve_more_arg;                                     // of these
    uint32_t window_rows; // of one stream's window in a round of drafts; 0: there are none
    bool branches;        // and there may be one beside it, within those rows
    devptr rec_m, rec_qkv, rec_gates; // per DeltaNet layer [record_rows_max, ..]
    devptr commit_runs, planted_runs;
};

// ST_UNSUPPORTED names the size that the operations cannot take.
int model_init(struct model *m, const struct ops *ops, const struct checkpoint *c, struct err *e);
void model_fini(struct model *m);       // zeroed is fine
bool model_tied(const struct model *m); // the embedding is the head
// Learns what the operations need while they run, for the limits as they stand, by a forward in which nothing is launched.
// After model_carve. False: it is as it was.
bool model_measure_work(struct model *m);
void model_carve(struct model *m, struct carve *c, struct round *r);
uint64_t model_kv_page_bytes(const struct model *m); // of a page in all layers, keys and values
uint64_t model_kv_layer_page_bytes(const struct model *m); // in one layer
// The cache of one layer, as the operations take it: keys of lim.pages pages at `keys`, the values behind them.
struct kv_view model_kv_view(const struct model *m, devptr keys);
void model_set_pages(struct model *m, uint32_t slot, const uint32_t *pages, uint32_t count);
uint32_t model_runs_max(const struct model *m); // of a round
// Before the forward: a branch of so many rows from pos, beside a stream with these pages. Returns its place in the page table.
uint32_t model_branch(struct model *m, uint32_t slot, const uint32_t *pages, uint32_t pos,
                      uint32_t rows);
// Behind the forward: the keys of the first rows of the branch become the stream's.
void model_keep_branch(struct model *m, uint32_t slot, const uint32_t *pages, uint32_t pos,
                       uint32_t rows);

// Runs the rows of a round through all layers. States of runs without record advance.
void model_forward(struct model *m, struct round *r);
// The same of a round whose tables are on the device, or, while operations are taken down, placed.
void model_layers(struct model *m, const struct round *r);
// One layer of full attention more, for a drafter: r's rows in h, at the angles of their positions (model_angles). r's
// tables are on the device.
void model_attn_layer(struct model *m, const struct layer_weights *l, const struct kv_view *kv,
                      const struct round *r);
void model_angles(struct model *m, const struct round *r);
// Logits of picks first .. first + count - 1 of the round last forwarded, into m->logits [count, V].
void model_head(struct model *m, const struct round *r, uint32_t first, uint32_t count);
// Advances the states of recorded runs by the rows each keeps. runs: slot, pos and record as in the round; count: kept.
void model_commit(struct model *m, const struct run *runs, uint32_t count);

// State of a slot at `rows` rows, as bytes on the host: model_state_bytes of them.
uint64_t model_state_bytes(const struct model *m, uint32_t rows);
void model_state_read(struct model *m, uint32_t slot, const uint32_t *pages, uint32_t rows,
                      void *ret);
void model_state_write(struct model *m, uint32_t slot, const uint32_t *pages, uint32_t rows,
                       const void *p);
