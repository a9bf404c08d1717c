/* linear_params: the arguments of the plain kernels of linear. A launch takes the parts of one type and leaves the others. */
#pragma once
#include "kernels/linear/linear.h"

struct cuda_arch;
struct cuda_work;
struct launch_list;

enum {
    LINEAR_FEW_ROWS = 8,     // linear_few
    LINEAR_FEW_WARPS = 8,    // of a block, whatever the segments
    LINEAR_FEW_PIECES = 128, // of 16 bytes, of a slot of a warp's ring
    LINEAR_SPAN = 64,     // inputs of a stage of linear_wide; rows are filled up to it with zeros
    LINEAR_THREADS = 256, // of the others
};

struct linear_params {
    struct linear_args a;
    devptr rounded;   // the rows as 16-bit values: stream_at of linear_stream.cuh
    devptr sums;      // [segments, T, outputs] f32, where segments are shared among blocks
    uint32_t outputs; // of all parts of the launch's type
    uint32_t per;     // linear_wide: outputs of a block
    uint32_t splits;  // linear_wide: blocks that share the segments of an output
};

// Adds the launches of the plain parts, and what they need of the scratch.
void linear_plain_plan(const struct linear_args *a, const struct cuda_arch *arch,
                       const struct cuda_work *w, struct launch_list *ret);
