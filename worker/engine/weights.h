/* weights: the tensors of a qwen3_5 or qwen3_5_moe text model, bound for the device.
 *
 * Matrices stay where the checkpoint maps them (or are moved once to a device without access to host memory); the small
 * vectors are turned into what the operations read: 1 + w for zero-centred norms, -exp(A_log), conv taps side by side.
 * Engine thread, at start only; the checkpoint must outlive it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/moe/experts.h"
#include "kernels/types.h"

struct carve;
struct checkpoint;
struct err;
struct ops;

struct attn_weights {
    struct weight q, k, v, o; // q: per head head_dim rows of query, then of gate
    devptr q_scale, k_scale;  // [head_dim] f32
};

struct delta_weights {
    struct weight qkv, z, b, a, out;
    devptr conv;           // [4, C] f32
    devptr neg_a, dt_bias; // [NV] f32
    devptr norm;           // [DV] f32
};

struct moe_weights {           // nothing in a dense model
    struct weight router;      // [X, D]
    struct weight shared_gate; // [1, D]
    struct expert *experts;    // [X + 1], the last being the shared one
    devptr dev_experts;        // the same on the device
};

struct layer_weights {
    bool full;
    devptr in_scale, post_scale;  // [D] f32
    struct attn_weights attn;     // full
    struct delta_weights delta;   // not full
    struct weight gate, up, down; // with experts: those of the shared one
    struct moe_weights moe;
};

struct weights {
    struct weight embed, head; // the same matrix when tied
    devptr final_scale;        // [D] f32
    devptr rope_freq;          // [R/2] f32
    uint32_t layers_count;
    struct layer_weights *layers;
    struct expert *experts; // of all layers; NULL in a dense model
    uint64_t bytes;         // of the matrices
    uint64_t room;          // on the device, vectors included; 0: not laid out yet
    bool embed_mapped; // the embedding's rows stand outside, in host memory that the device reads
};

struct mtp_weights {     // the MTP head
    struct weight fc[2]; // the columns of fc that take the embedding, and the hidden row
    devptr embed_scale, hidden_scale, scale; // [D] f32: before fc, and behind the layer
    struct layer_weights layer;              // full attention
    struct expert *experts;                  // NULL in a dense model
    uint64_t room;                           // on the device; 0: not laid out yet
};

struct weights_load { // progress, and where rope's frequencies come from
    void (*on_load)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *arg;
    void *embed_rows; // pinned, for mapped rows, and where the device sees it
    devptr embed_mapped;
    const float *rope_freq;
    uint32_t rope_pairs;
};

void weights_fini(struct weights *w); // zeroed is fine
// Whether the embedding's rows get a place in the arena. They must have one where they are the head too.
void weights_map_embedding(struct weights *w, bool mapped);
uint64_t weights_embedding_bytes(const struct checkpoint *c);
// Lays out what the weights need on the device. The checkpoint's shapes have been checked. Measuring again is quick: a
// model with experts has a hundred thousand tensors to look up, and a start measures many times.
void weights_carve(struct weights *w, const struct checkpoint *c, const struct ops *ops,
                   struct carve *carve, uint32_t rope_pairs);
// Fills what was carved, and reads every page of the matrices once so that no round waits for a disk.
int weights_fill(struct weights *w, const struct checkpoint *c, const struct ops *ops,
                 const struct weights_load *load, struct err *e);

// The same for the MTP head, whose shapes have been checked (checkpoint_check_mtp).
void weights_mtp_carve(struct mtp_weights *w, const struct checkpoint *c, const struct ops *ops,
                       struct carve *carve);
int weights_mtp_fill(struct mtp_weights *w, const struct checkpoint *c, const struct ops *ops,
                     struct err *e);
void weights_mtp_fini(struct mtp_weights *w); // zeroed is fine
