/* draft_bed: a target and a drafter behind it without an engine: rounds are fed and kept as the test says. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "worker/engine/carve.h"
#include "worker/engine/drafter.h"
#include "worker/engine/model_qwen3_5.h"
#include "worker/engine/round.h"

struct checkpoint;
struct cpu_pool;
struct draft_bed;
struct err;

struct draft_bed_config {
    const char *dir;
    uint32_t slots, context; // rows of each slot
    enum dtype kv_dtype;     // F32 is 0
    const struct engine_range *spans;
    uint32_t spans_count;
    int (*open)(struct drafter *ret, struct draft_bed *b, struct err *e);
};

struct draft_bed {
    struct cpu_pool *pool;
    struct ops ops;
    struct checkpoint *ckpt;
    struct model model;
    struct round round;
    struct drafter_limits lim;
    struct drafter drafter;
    devptr block;
    uint64_t block_bytes;
    struct carve carve; // as laid out for real
    uint32_t vocab;
    uint32_t *pages; // [slots][pages_per_slot], those of a slot scattered
};

int bed_mtp(struct drafter *ret, struct draft_bed *b, struct err *e); // for draft_bed_config.open

// Fails the test with the message; try: gives it back instead, and everything with it.
void draft_bed_open(struct draft_bed *b, const struct draft_bed_config *c);
int draft_bed_try(struct draft_bed *b, const struct draft_bed_config *c, struct err *e);
void draft_bed_close(struct draft_bed *b);

struct bed_feed { // rows of one stream in a round
    uint32_t slot, pos, count, keep;
    const uint32_t *ids; // of the stream, from position 0
    uint32_t known;      // how many of them the drafter is told
    float *ret;          // [count, V] logits, or NULL
};
// One round: the rows through the target, `keep` of each committed and told. In two steps, for who keeps by the logits.
void draft_bed_round(struct draft_bed *b, const struct bed_feed *f, uint32_t count);
void draft_bed_forward(struct draft_bed *b, const struct bed_feed *f, uint32_t count);
void draft_bed_keep(struct draft_bed *b, const struct bed_feed *f, uint32_t count);
// Feeds rows first .. count - 1 of a stream in chunks; the drafter is told of `known` ids, each chunk's last next one too.
// ret: logits of the last row, or NULL.
void draft_bed_fill(struct draft_bed *b, uint32_t slot, const uint32_t *ids, uint32_t first,
                    uint32_t count, uint32_t known, uint32_t chunk, float *ret);
// Drafts behind ids[pos], greedy. Returns how many.
uint32_t draft_bed_propose(struct draft_bed *b, uint32_t slot, const uint32_t *ids, uint32_t pos,
                           uint32_t want, uint32_t *ret);
