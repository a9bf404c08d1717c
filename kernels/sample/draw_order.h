/* draw_order: what the CUDA kernel of draw, its plan and its twin agree on. */
#pragma once

#define DRAW_TEMPERATURE_MIN 1e-5 // SAMPLE_TEMPERATURE_MIN

enum { DRAW_THREADS = 512 };
