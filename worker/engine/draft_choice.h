/* draft_choice: one id of a few candidates, drawn as the target will draw at that position: with the same noise, so that both agree as
 * often as they can (docs/sampling.md). Penalties, bias and masks are not looked at. Pure; any thread. */
#pragma once
#include <stdint.h>

struct sample_params;

enum { DRAFT_CHOICE_MAX = 32 };

// Which of count candidates: greedy, the one with the greatest score, the first of equals; sampled, the greatest of score / temperature +
// noise(seed, position, id) among those that top_k, top_p and min_p leave. position: of the id that is chosen.
uint32_t draft_choice(const uint32_t *ids, const float *scores, uint32_t count,
                      const struct sample_params *p, uint64_t position);
