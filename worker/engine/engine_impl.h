/* engine_impl: the parts of struct engine, shared by the files that make it up (engine.c, step.c, state.c). */
#pragma once
#include "kernels/draft/draft_top.h"
#include "kernels/ops.h"
#include "worker/engine/backend.h"
#include "worker/engine/budget.h"
#include "worker/engine/carve.h"
#include "worker/engine/checkpoint.h"
#include "worker/engine/drafts.h"
#include "worker/engine/engine.h"
#include "worker/engine/graphs.h"
#include "worker/engine/kvpool.h"
#include "worker/engine/model_qwen3_5.h"
#include "worker/engine/round.h"
#include "worker/engine/sched.h"
#include "worker/engine/stream.h"

struct pick_group { // neighbouring picks of one stream, in one piece of the head
    uint32_t slot, first, count;
};

struct engine {
    struct checkpoint *ckpt;
    struct backend backend;
    struct ops ops; // the backend's
    struct cpu_pool *pool;
    struct model model;
    struct budget budget;
    devptr block; // the arena
    uint64_t block_bytes;
    void *host_rows;    // of the embedding, pinned; NULL: they are in the arena
    devptr mapped_rows; // where the device sees them
    struct kvpool *kv;
    struct round round;
    struct sched sched;
    struct drafts drafts;
    struct graphs graphs;
    struct run *kept; // [streams_max] of a round's runs, what stands
    uint32_t fault;
    bool failed; // the device; nothing but engine_free works

    struct stream *streams; // [streams_max], by slot
    struct sched_item *items;
    uint64_t handles; // given out
    struct stream_vocab vocab;
    uint32_t *used_bits, *stop_ids;
    struct draft_top_part used_parts[DRAFT_PARTS_MAX]; // of a row of logits: ids in use
    uint32_t used_parts_count, used_count;

    struct sample **samplers;  // one per thread of the pool
    float *host_logits;        // [head_rows_max, V]
    uint32_t *drawn;           // [head_rows_max * MODEL_DRAW_WORDS]
    struct pick_group *groups; // [head_rows_max]
    struct engine_event *events;
    uint64_t rounds;

    struct engine_info info;
    struct engine_region regions[CARVE_REGIONS_MAX];
    char digest[CHECKPOINT_DIGEST_HEX_BYTES], kv_rule[100], experts_rule[160], embedding_rule[120];
};

// Slot and pages for a checked request; the stream is open and at row 0. ST_FULL, ST_INVAL.
int engine_admit(struct engine *eng, const struct engine_request *r, struct stream **ret,
                 struct err *e);
void engine_release(struct engine *eng, struct stream *s); // gives slot and pages back
struct stream *engine_find(struct engine *eng, uint64_t handle);

// What to do with each piece of logits: rows picks[first] .. of the round. They are on the device: engine_read_logits.
typedef void engine_logits_fn(void *arg, struct engine *eng, uint32_t first, uint32_t count);
// The piece's rows into host_logits.
void engine_read_logits(struct engine *eng, uint32_t count);
// The ids in use, for draws on the device; after their bits have changed.
void engine_find_used(struct engine *eng);
// Draws the piece's ids where its logits are. False: the host has to, from the logits.
bool engine_draw_on_device(struct engine *eng, uint32_t first, uint32_t count);
// Whether a row of the round is one of its stream's, as far as that has ids: it and those of its run before it were fed with them, and
// an id is to be drawn from it.
bool engine_row_stands(const struct engine *eng, uint32_t row);
// Runs eng->round through the model and its picks through the head.
int engine_forward(struct engine *eng, engine_logits_fn *fn, void *arg, struct err *e);
