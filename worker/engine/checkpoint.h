/* checkpoint: a folder of a published model: config.json and safetensors files, opened, checked and named as one.
 *
 * Files: model.safetensors, or else the shards that model.safetensors.index.json names. Every tensor of a shard counts,
 * listed or not; a listed one must be where the index says, and no name may stand in two shards.
 *
 * Names: the text tower's prefix is found by probing for embed_tokens.weight, so all layouts of the family read alike:
 *   model.language_model. (multimodal)   model. (text only)   language_model.model. (other tools' packs)
 * The head is tied when there is neither lm_head.weight nor lm_head.trellis, whatever the config says. Tensors of the vision tower (model.visual.,
 * visual.) and of the MTP head (mtp.) are recognised and counted; those of no part at all are counted as "other".
 *
 * Immutable once open, so any thread may read. Data is a mapping: pages are read when touched. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "worker/engine/model_config.h"
#include "worker/engine/safetensors.h"

struct err;
struct checkpoint; // defined in checkpoint.c

enum {
    CHECKPOINT_INDEX_BYTES_MAX = 256 << 20,
    CHECKPOINT_SHARDS_MAX = 4096,
    CHECKPOINT_DIGEST_HEX_BYTES = 65,
    CHECKPOINT_DIGEST_PAGES = 64, // of 4 KiB, a file
};

struct checkpoint_info {
    const char *text_prefix; // "model.language_model."
    uint32_t files;
    uint32_t text_tensors, mtp_tensors, vision_tensors, other_tensors;
    uint64_t text_parameters; // elements of the text tensors, head included, MTP not
    uint64_t text_bytes, mtp_bytes, total_bytes;
    uint64_t routed_bytes, routed_parameters; // of these the text tower's routed experts
    bool tied;
    // Layers by the form of their routed experts (checkpoint_experts); of the packed ones, those that have both.
    uint32_t packed_layers, single_layers, both_layers;
};

// ST_NOT_FOUND, ST_IO: folder or file; ST_CORRUPT: their contents; ST_UNSUPPORTED: another family or form of weights.
// The message is one line naming file, tensor or key, what was wanted and what was found.
int checkpoint_open(struct checkpoint **ret, const char *dir, struct err *e);
void checkpoint_close(struct checkpoint *c); // NULL is fine

const struct model_config *checkpoint_config(const struct checkpoint *c);
const struct checkpoint_info *checkpoint_info(const struct checkpoint *c);

// NULL when there is none. By full name, and by name behind the text prefix ("layers.0.mlp.up_proj.weight").
const struct safetensors_tensor *checkpoint_find(const struct checkpoint *c, const char *name);
const struct safetensors_tensor *checkpoint_text(const struct checkpoint *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
// The same behind another prefix ("mtp.").
const struct safetensors_tensor *checkpoint_under(const struct checkpoint *c, const char *prefix,
                                                  const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// The head: lm_head.trellis, else lm_head.weight, or the embedding when tied. Key: for checkpoint_linear, "lm_head".
const struct safetensors_tensor *checkpoint_head(const struct checkpoint *c);
const char *checkpoint_head_key(const struct checkpoint *c);

/* How a layer holds its routed experts: all of them in experts.gate_up_proj [X, 2 I, D] (rows 0 .. I-1 gate, then up) and
 * experts.down_proj [X, D, I], or each in experts.e.gate_proj.weight, .up_proj.weight and .down_proj.weight. One file may
 * hold both forms, so it is looked up layer by layer; a layer with both is taken as packed, the published form.
 * prefix: the text tower's, or "mtp.". */
#define CHECKPOINT_MTP_PREFIX "mtp."
enum checkpoint_experts { CHECKPOINT_EXPERTS_SINGLE, CHECKPOINT_EXPERTS_PACKED };
enum checkpoint_experts checkpoint_experts(const struct checkpoint *c, const char *prefix,
                                           uint32_t layer);

// All tensors of the checkpoint, by name.
uint32_t checkpoint_count(const struct checkpoint *c);
const struct safetensors_tensor *checkpoint_at(const struct checkpoint *c, uint32_t idx);

// Every tensor that a text model of this config needs is there, with its shape and as BF16, F16 or F32; linears may be
// EXL3 (checkpoint_linear.h). ST_UNSUPPORTED for other quantised tensors.
int checkpoint_check_shapes(const struct checkpoint *c, struct err *e);
// The same for the MTP head: one layer of full attention with the target's sizes, fc and norms, and nothing else under
// mtp. The tensors say whether there is one, not the config. ST_UNSUPPORTED: none, or one of another make.
int checkpoint_check_mtp(const struct checkpoint *c, struct err *e);

/* Identity of the weights, for fingerprints: SHA-256 over config.json, then for each file in the order of their names:
 * its length, its safetensors header, and CHECKPOINT_DIGEST_PAGES pages of its data spread evenly from the first byte
 * to the last (all of it when it is smaller than that). A change of one weight between those pages is not seen:
 * hashing it all would read every byte of a large model once more. */
void checkpoint_digest(const struct checkpoint *c, char ret[CHECKPOINT_DIGEST_HEX_BYTES]);
