/* dflash_weights: the tensors of a DFlash drafter: their names, shapes and places.
 *
 * Matrices are read where the file is mapped or copied to the device, or quantised to 4 bits (kernels/draft/q4.h) when they are loaded; vectors become fp32. The
 * selector's codebooks stay on the host. One walk (visit) checks, lays out and loads, so the three cannot disagree; the
 * layout follows from the config alone. Engine thread, at start only. */
#pragma once
#include <stdint.h>

#include "kernels/draft/q4.h"
#include "kernels/types.h"
#include "worker/engine/dflash_config.h"

struct carve;
struct err;
struct ops;
struct safetensors;
struct safetensors_tensor;

struct dflash_matrix {
    struct weight plain; // of the file; loaded only where q4 is not taken
    struct q4 q4;        // rows 0: plain
};

struct dflash_conv { // v2 only
    devptr base;     // [2, taps, D] f32: side 0 before the sublayer, side 1 behind it
    struct dflash_matrix projection;
};

struct dflash_layer {
    devptr in_scale, post_scale, q_scale, k_scale;
    struct dflash_matrix q, k, v, o, gate, up, down;
    struct dflash_conv attn_conv, mlp_conv;
};

struct dflash_weights {
    const struct dflash_config *cfg;
    const struct ops *ops;
    uint64_t quantize_min; // values; 0: nothing is quantised
    struct safetensors *file;
    const char *prefix; // of all names: "" or "model."
    struct dflash_matrix fc, hidden_projection;
    devptr hidden_norm, norm, rope_freq;
    struct dflash_layer layers[DFLASH_LAYERS_MAX];
    const struct safetensors_tensor *predecessor, *successor; // codebooks [V, rank]
    uint64_t carved_bytes;
};

// cfg and ops must outlive it. Nothing is opened.
void dflash_weights_init(struct dflash_weights *w, const struct dflash_config *cfg,
                         const struct ops *ops, uint64_t quantize_min);
// Opens and checks model.safetensors of the folder: every tensor of the config is there with its shape, and no other is.
int dflash_weights_open(struct dflash_weights *w, const char *dir, struct err *e);
void dflash_weights_close(struct dflash_weights *w); // zeroed is fine
void dflash_weights_carve(struct dflash_weights *w, struct carve *c);
// scratch: device memory that is free until this returns, for at least one group of q4.h.
void dflash_weights_load(struct dflash_weights *w, devptr scratch, uint64_t bytes);
