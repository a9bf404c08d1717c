/* draw: tokens drawn on the device, for rows that need no filter and no change of their logits.
 *
 *   ids[t] = the id in use with the greatest logit / temperature + noise(seed, position, id), of those that min_p leaves;
 *            temperature below SAMPLE_TEMPERATURE_MIN: the greatest logit, ties to the smallest id
 * Exactly what sample_draw (sample.h) gives for such settings: top_k 0 and top_p 1 (or temperature 0), no penalty, no bias, nothing
 * suppressed. top_k above 1 needs a row's best ids (draft/draft_top.h, sample_draw_best), top_p without it the row sorted and summed in
 * order, penalties and bias the counts of ids: those rows are drawn from on the host.
 * Shapes  logits [T, V] f32, unchanged; rows [T] struct draw_row; used_bits [V / 32] u32, bit id % 32 of word id / 32: the id
 *         may be drawn, 0 for all; ids [T] u32.
 * Order   free: the arg max has one answer, (score, logit, smaller id) being a total order. Double; noise.h.
 * Backends without it have NULL in their table: the host draws. */
#pragma once
#include "kernels/types.h"

struct draw_row {
    double temperature, min_p;
    uint64_t seed, position;
};

struct draw_args {
    devptr logits, rows, used_bits, ids;
    uint32_t rows_count, vocab;
};
