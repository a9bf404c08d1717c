/* frame_samples: one of every frame, for the tests, the fuzz corpus and the tools. */
#pragma once
#include "proto/frame.h"

struct arena;

enum frame_sample_size {
    FRAME_SAMPLE_LEAST, // every number at its smallest, every list as short as it may be
    FRAME_SAMPLE_USUAL,
    FRAME_SAMPLE_MOST, // every number at its largest, lists and texts long
    FRAME_SAMPLE_SIZES,
};

// Fills *ret; what it points to lives in a.
void frame_sample(struct frame *ret, enum frame_type type, enum frame_sample_size size,
                  struct arena *a);
