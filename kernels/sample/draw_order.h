/* draw_order: what the CUDA kernels of draw, their plan and their twin agree on. */
#pragma once
#include "kernels/sample/draw.h"

#define DRAW_TEMPERATURE_MIN 1e-5 // SAMPLE_TEMPERATURE_MIN

enum {
    DRAW_THREADS = 256,
    DRAW_QUADS = 2, // of four ids, a thread's of a piece
    DRAW_PIECE = DRAW_THREADS * DRAW_QUADS * 4,
};

struct draw_best {
    double score;
    uint64_t cand; // noise_cand
};

struct draw_params {
    struct draw_args a;
    uint32_t pieces; // of a row
    devptr tops, bests,
        counters; // u64 [T, pieces]; struct draw_best [T, pieces]; u32 [T], 0 between launches
};
