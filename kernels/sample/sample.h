/* sample: draws one token from a row of logits. Pure: the draw is a function of the row, the settings, the counts
 * and (seed, position) alone; no state, any thread.
 *
 * Order (docs/sampling.md): penalties, bias, ids not in use and suppressed ids; temperature 0 or
 * top_k 1: arg max, ties to the smallest id; else sort by (logit descending, id ascending), top_k, softmax of
 * logit / temperature in double, top_p, min_p, then arg max of logit / temperature + Gumbel noise, ties to the earlier.
 * Penalties are made in double and rounded to fp32 once, the bias is added in fp32. The total of the softmax is summed in
 * the sorted order under top_k, in the order of ids without.
 * The noise is -ln(-ln(u)) with u from a counter-based hash of (seed, position, id): see sample_noise_u.
 * exp and log are our own (kernels/math_f64.h), so bits do not follow the C library. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sample; // scratch for one vocabulary size; one per thread
struct err;

enum { SAMPLE_BIAS_MAX = 1025 }; // as a frame carries
#define SAMPLE_TEMPERATURE_MIN                                                                     \
    1e-5 // below it a draw is the arg max: logit / temperature must stay finite

// All resolved, no defaults left; ranges as sample_check says (docs/api.md).
struct sample_params {
    double temperature;         // 0..2; 0: arg max
    uint32_t top_k;             // 0: off; at most the vocabulary
    double top_p, min_p;        // 0..1; top_p 1 and min_p 0: off
    double presence, frequency; // -2..2, on generated ids
    double repetition;          // above 0 to 2, on ids of the prompt and generated ones; 1: off
    uint64_t seed;
    const uint32_t *bias_ids; // bias_count of them
    const float *bias;        // added to the logit; -100 forbids the id
    uint32_t bias_count;
};

struct sample_logprob {
    uint32_t id;
    float logprob;
};

struct sample *sample_new(uint32_t vocab_size);
void sample_free(struct sample *s); // NULL is fine

// Counts of ids, as the penalties need them. prompt_seen: the id stands in the prompt. generated: times generated.
// Either may be NULL: none.
struct sample_counts {
    const uint8_t *prompt_seen; // [vocab_size], 0 or 1
    const uint32_t *generated;  // [vocab_size]
};

struct sample_mask {
    const uint32_t *used_bits; // bit id % 32 of word id / 32: the id may be drawn; NULL: all
    const uint32_t
        *suppressed; // ids that may not be drawn at this position (stop ids before min_tokens)
    uint32_t suppressed_count;
};

// ST_INVAL names the field, wanted and found.
int sample_check(const struct sample_params *p, uint32_t vocab_size, struct err *e);
// logits: [vocab_size], raw, unchanged. position: absolute index of the token being drawn.
// With every id masked the answer is the smallest id in use. A logit that is NaN or -infinity is never drawn.
// counts and mask may be NULL.
uint32_t sample_draw(struct sample *s, const float *logits, const struct sample_params *p,
                     const struct sample_counts *counts, const struct sample_mask *mask,
                     uint64_t position);
// The same draw from the best of a row alone: its first `count` ids in use by (logit descending, id ascending), which are all
// that settings with 2 <= top_k <= count look at where there is no penalty, no bias and nothing suppressed.
uint32_t sample_draw_best(struct sample *s, const uint32_t *ids, const float *logits,
                          uint32_t count, const struct sample_params *p, uint64_t position);
// Whether the logit of every id in use (used_bits as in sample_mask; NULL: all) is a finite number. A row where one is not
// comes from a broken model or device, and nothing drawn from it means anything.
bool sample_finite(const float *logits, uint32_t vocab_size, const uint32_t *used_bits);
// u in (0, 1) for the noise of one id.
double sample_noise_u(uint64_t seed, uint64_t position, uint32_t id);
double sample_gumbel(uint64_t seed, uint64_t position, uint32_t id);
// The running hash of logits: hash of the row's bits folded into h (0 at the start of a stream). Not cryptographic, but
// two rows that differ in a single value, or two h, never give the same hash.
uint64_t sample_hash_row(uint64_t h, const float *logits, uint32_t vocab_size);
// Natural log of the softmax of the raw logits, for the drawn id and the top_count best (by value, then id).
void sample_logprobs(struct sample *s, const float *logits, uint32_t drawn, uint32_t top_count,
                     float *ret_drawn, struct sample_logprob *ret_top);
