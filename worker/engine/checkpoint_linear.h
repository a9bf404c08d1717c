/* checkpoint_linear: how the files hold one linear layer, checked: plain in KEY.weight, or EXL3 in KEY.trellis and what
 * belongs to it. Any linear of a checkpoint may be either, with a width and a codebook of its own; tensors alone say which.
 *
 *   KEY.trellis        I16 [in / 16, out / 16, 16 B]; B, the bits of a weight, is 1 to 8, or with MUL1 a half in between
 *   KEY.suh, KEY.svh   F16 [in], [out]; or in early files their signs alone, KEY.su, KEY.sv, I16 [in / 16], [out / 16]
 *   KEY.bias           F16 or F32 [out], optional
 *   KEY.mcg, KEY.mul1  I32, one element that names the codebook; neither: 3INST
 *
 * in and out are multiples of 128. Pure; any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "kernels/types.h"

struct checkpoint;
struct err;
struct safetensors_tensor;

struct checkpoint_linear {
    const struct safetensors_tensor *main; // .weight or .trellis
    uint64_t rows, cols;                   // outputs, inputs
    uint64_t bytes;                        // of all its tensors
    uint32_t half_bits; // twice the bits of a weight; 0: plain, and the rest is nothing
    enum exl3_codebook codebook;
    const struct safetensors_tensor *in_factors, *out_factors; // F16, or I16: packed signs
    const struct safetensors_tensor *bias;                     // NULL: none
};

enum { CHECKPOINT_FORMAT_BYTES = 32 };

// key: the full name, "model.layers.0.mlp.up_proj". ST_NOT_FOUND: neither .weight nor .trellis is there. ST_CORRUPT,
// ST_UNSUPPORTED: one line naming file, tensor, wanted, found. A plain one's dtype and a sensible size are the caller's to check.
int checkpoint_linear(const struct checkpoint *c, const char *key, struct checkpoint_linear *ret,
                      struct err *e);
// The linear whose .weight (of two dimensions) or .trellis is tensor idx of the checkpoint; ST_NOT_FOUND when it is none.
int checkpoint_linear_at(const struct checkpoint *c, uint32_t idx, struct checkpoint_linear *ret,
                         struct err *e);
// "BF16", "EXL3 4 bits MUL1", "EXL3 3.5 bits MUL1"
void checkpoint_linear_format(const struct checkpoint_linear *l, char ret[CHECKPOINT_FORMAT_BYTES]);
