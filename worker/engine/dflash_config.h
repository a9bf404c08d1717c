/* dflash_config: config.json of a DFlash or DFlash2 drafter, as plain values, checked against its target (docs/dflash.md).
 *
 * Keys stand where the published files have them, or where those of other trainers do; both places are looked at, and two that disagree
 * are refused. What this build does not run is refused by name. No pointers: copy it freely. Pure, any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/draft/draft.h"
#include "kernels/types.h"
#include "worker/engine/engine.h"

struct err;

enum {
    DFLASH_LAYERS_MAX = 64, // 8 in the largest published drafter
    DFLASH_BLOCK_MAX = DRAFT_BLOCK_MAX,
    DFLASH_TAPS_MAX = DRAFT_TAPS_MAX,
};

struct dflash_target { // what a drafter must fit
    uint32_t hidden, layers, vocab;
};

struct dflash_config {
    bool v2; // DFlash2: convolutions and a selector
    uint32_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab;
    double rms_norm_eps, rope_theta;
    bool sliding[DFLASH_LAYERS_MAX], causal[DFLASH_LAYERS_MAX]; // causal: inside the block
    uint32_t window;                            // of sliding layers: distances 0 .. window - 1
    uint32_t taps[DFLASH_TAPS_MAX], taps_count; // layers of the target, in the order of fc's inputs
    uint32_t mask_id;
    uint32_t block;          // rows, the anchor's included
    uint32_t target_layers;  // that it was made for
    bool sample_from_anchor; // row i gives the id behind its own position, row 0 too
    double embedding_scale, output_multiplier, softcap; // softcap 0: none
    enum dtype dtype;                                   // of the matrices
    uint32_t conv_taps, conv_group;                     // v2 only, else 0
    uint32_t rank;                                      // of the selector; v2 only
    uint32_t top;                                       // candidates a row
    // Ours, of the demo family: the file's own draft vocabulary and the size from which matrices are quantised. 0: not given.
    struct engine_range spans[DRAFT_PARTS_MAX];
    uint32_t spans_count;
    uint64_t quantize_min;
};

// Whether a config.json is of this family, right or not; also of forms that are refused.
bool dflash_config_is(const char *json, size_t len);
// target NULL: nothing is known of it but what the file says, which must then say it.
// path names the file in messages. ST_CORRUPT: not JSON, or no such config can be; ST_INVAL: made for another target;
// ST_UNSUPPORTED: another family, or a form that this build does not run.
int dflash_config_parse(struct dflash_config *ret, const char *path, const char *json, size_t len,
                        const struct dflash_target *target, struct err *e);
bool dflash_config_all_slide(const struct dflash_config *c);
uint32_t dflash_config_ids_max(const struct dflash_config *c); // that a block proposes
