/* model_bed: a model on the CPU without an engine around it, and a DFlash drafter beside it where one is asked for: for tests that look at
 * their parts. One stream at a time, in slot 0. Trouble ends the test. */
#pragma once
#include "kernels/ops.h"
#include "kernels/sample/sample.h"
#include "worker/engine/carve.h"
#include "worker/engine/drafter.h"
#include "worker/engine/model_qwen3_5.h"
#include "worker/engine/round.h"

enum { BED_ROWS = 96 }; // of a forward

struct model_bed_config {
    const char *dir, *drafter; // drafter: NULL for none
    uint32_t context, slots;
    uint32_t stop_id;              // beside the config's; 0: none
    struct drafter_limits limits;  // quantize_min and spans; the rest is filled in
    void (*change)(void *self);    // of the drafter, before it is carved; may be NULL
    struct sample_params sampling; // of answers; zeros are greedy
};

struct model_bed {
    struct cpu_pool *pool;
    struct ops ops;
    struct checkpoint *ckpt;
    struct model model;
    struct round round;
    struct drafter drafter;
    struct drafter_limits limits;
    uint32_t context, stop_id;
    devptr block;
    uint64_t bytes, drafter_bytes; // of the whole arena; of the drafter's part
    float *logits;                 // [BED_ROWS, V]
    struct sample *sampler;
    struct sample_params sampling;
};

void model_bed_open(struct model_bed *b, const struct model_bed_config *c);
void model_bed_close(struct model_bed *b);
// Feeds count ids at pos of slot 0 and draws behind each into ret, or behind the last alone, when ret is NULL; gives the last one.
// record: as a window, committed by model_bed_keep.
uint32_t model_bed_feed(struct model_bed *b, const uint32_t *ids, uint32_t pos, uint32_t count,
                        bool record, uint32_t *ret);
// The first `keep` rows of the last window are committed. Tells the drafter nothing.
void model_bed_keep(struct model_bed *b, uint32_t pos, uint32_t keep);

struct bed_drafted { // a drafted reply
    uint32_t rounds, tokens, drafted, kept;
};
// Answers the prompt, up to count tokens or a stop id, with blocks of the drafter.
struct bed_drafted model_bed_answer(struct model_bed *b, const uint32_t *prompt,
                                    uint32_t prompt_count, uint32_t count);
