/* linear_order: the order of sums that every CUDA kernel of linear keeps, from one row to a prompt, and its twin.
 *
 * K is cut into steps of sixteen, one tensor-core step each (kernels/cuda/mma_step.h); neighbouring steps make segments; a
 * segment is a chain from 0; segments add in ascending order. All of it follows from K alone, so a view of some columns of
 * a matrix keeps the whole one's bits.
 *   plain  step i takes k = 16 i .. 16 i + 15; what lies behind K counts as 0
 *   EXL3   four steps take 64 neighbours: step s of them k = 16 c + 2 s + {0, 1, 8, 9}, c = 0 .. 3. A lane then decodes
 *          neighbouring symbols of the trellis for each step. */
#pragma once
#include "kernels/cuda/arith.h"
#include "kernels/types.h"

enum {
    LINEAR_STEP = 16,
    LINEAR_GROUP = 4,           // steps that are never cut apart: 64 neighbours
    LINEAR_SEGMENTS_BESIDE = 2, // of an EXL3 block at once; the others follow
    LINEAR_WARPS = 8,
    LINEAR_TILE = 16, // outputs of a warp
};

// Of plain weights. Where rows are few a segment has a warp of its own, so that few outputs still keep a card busy.
ARITH_FN uint32_t linear_segments(uint32_t cols) {
    return cols >= 4096 ? 8 : cols >= 2048 ? 4 : cols >= 1024 ? 2 : 1;
}

// Steps of a segment; the last one may have fewer. With the segments above none is empty.
ARITH_FN uint32_t linear_segment_steps(uint32_t cols) {
    uint32_t groups = (cols + LINEAR_STEP * LINEAR_GROUP - 1) / (LINEAR_STEP * LINEAR_GROUP);
    uint32_t segments = linear_segments(cols);
    return (groups + segments - 1) / segments * LINEAR_GROUP;
}

/* EXL3's segments are of whole blocks of 128 inputs, the last one of what is left. Few rows want many segments: a warp has a segment
 * of sixteen outputs, and small matrices too must keep every warp busy. Kernels of many rows add finished segments in registers, which
 * costs them one sum a row and output. */
ARITH_FN uint32_t linear_exl3_groups(uint32_t cols) { // of 64 inputs, of a segment
    uint32_t blocks = cols / EXL3_BLOCK;
    uint32_t most = cols >= 4096 ? 8 : cols >= 2048 ? 4 : cols >= 1024 ? 2 : 1;
    return (blocks + most - 1) / most * (EXL3_BLOCK / (LINEAR_STEP * LINEAR_GROUP));
}

ARITH_FN uint32_t linear_exl3_segments(uint32_t cols) {
    uint32_t groups = cols / (LINEAR_STEP * LINEAR_GROUP), per = linear_exl3_groups(cols);
    return (groups + per - 1) / per;
}
