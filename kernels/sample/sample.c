/* sample: see sample.h. Owns the scratch of one vocabulary. Which way a draw takes (a heap of the best, a whole sort, one
 * pass without any) follows from the settings and never shows in the answer. */
#include "kernels/sample/sample.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/math_f64.h"
#include "kernels/sample/noise.h"

enum {
    HEAP_MAX = 1024,   // a larger top_k sorts the whole row: the heap is no faster there
    NUCLEUS_TRY = 256, // best ids looked at first when only top_p limits
    BLOCK = 32,        // logits compared at once; also the ids of one word of used_bits
    RADIX_BITS = 11,   // 3 passes over a 32-bit key
    RADIX_SIZE = 1 << RADIX_BITS,
};

struct sample {
    uint32_t vocab;
    float *adj; // the logits after penalties, bias and masks; -infinity: may not be drawn
    uint64_t *cand, *other;
    double *weight; // exp(z - z_0) of the best
};

struct sample *sample_new(uint32_t vocab_size) {
    struct sample *s = mem_calloc(1, sizeof *s);
    s->vocab = vocab_size;
    s->adj = mem_calloc(vocab_size, sizeof *s->adj);
    s->cand = mem_calloc(vocab_size, sizeof *s->cand);
    s->other = mem_calloc(vocab_size, sizeof *s->other);
    s->weight = mem_calloc(vocab_size, sizeof *s->weight);
    return s;
}

void sample_free(struct sample *s) {
    if (!s) return;
    free(s->adj);
    free(s->cand);
    free(s->other);
    free(s->weight);
    free(s);
}

static int check_range(const char *field, double x, double min, double max, struct err *e) {
    if (x >= min && x <= max) return ST_OK;
    return err_set(e, ST_INVAL, "%s: wanted %g to %g, found %g", field, min, max, x);
}

static int check_bias(const struct sample_params *p, uint32_t vocab_size, struct err *e) {
    if (p->bias_count > SAMPLE_BIAS_MAX)
        return err_set(e, ST_INVAL, "logit_bias: wanted at most %d ids, found %u", SAMPLE_BIAS_MAX,
                       p->bias_count);
    for (uint32_t i = 0; i < p->bias_count; i++) {
        if (p->bias_ids[i] >= vocab_size)
            return err_set(e, ST_INVAL, "logit_bias: wanted ids below %u, found %u", vocab_size,
                           p->bias_ids[i]);
        int st = check_range("logit_bias", p->bias[i], -100, 100, e);
        if (st) return st;
    }
    return ST_OK;
}

int sample_check(const struct sample_params *p, uint32_t vocab_size, struct err *e) {
    int st = check_range("temperature", p->temperature, 0, 2, e);
    if (!st) st = check_range("top_p", p->top_p, 0, 1, e);
    if (!st) st = check_range("min_p", p->min_p, 0, 1, e);
    if (!st) st = check_range("presence_penalty", p->presence, -2, 2, e);
    if (!st) st = check_range("frequency_penalty", p->frequency, -2, 2, e);
    if (!st) st = check_range("repetition_penalty", p->repetition, 0, 2, e);
    if (st) return st;
    if (p->repetition == 0)
        return err_set(e, ST_INVAL, "repetition_penalty: wanted more than 0, found 0");
    if (p->top_k > vocab_size)
        return err_set(e, ST_INVAL, "top_k: wanted at most %u (vocabulary), found %u", vocab_size,
                       p->top_k);
    return check_bias(p, vocab_size, e);
}

/* ---- Step 1: the logits that are drawn from ---- */

static void copy_used(struct sample *s, const float *logits, const uint32_t *used_bits) {
    for (uint32_t i = 0; i < s->vocab; i += BLOCK) {
        uint32_t n = min_u32(BLOCK, s->vocab - i), bits = used_bits ? used_bits[i / BLOCK] : ~0u;
        if (bits == ~0u)
            for (uint32_t j = 0; j < n; j++) s->adj[i + j] = noise_tame(logits[i + j]);
        else
            for (uint32_t j = 0; j < n; j++)
                s->adj[i + j] = bits >> j & 1 ? noise_tame(logits[i + j]) : -INFINITY;
    }
}

// Repetition divides what speaks for an id and multiplies what speaks against it (Keskar et al. 2019, CTRL, section
// 4.1); presence and frequency are subtracted (OpenAI's API). In double, to fp32 once.
static float penalised(float x, const struct sample_params *p, bool seen, uint32_t generated) {
    double y = x;
    if (seen || generated) y = y > 0 ? y / p->repetition : y * p->repetition;
    if (generated) y -= p->presence + p->frequency * generated;
    return (float)(y > FLT_MAX ? FLT_MAX : y < -FLT_MAX ? -FLT_MAX : y) + 0.0f;
}

static void penalise(struct sample *s, const struct sample_params *p,
                     const struct sample_counts *counts) {
    if (!counts || (p->repetition == 1 && p->presence == 0 && p->frequency == 0)) return;
    for (uint32_t i = 0; i < s->vocab; i++) {
        bool seen = counts->prompt_seen && counts->prompt_seen[i];
        uint32_t generated = counts->generated ? counts->generated[i] : 0;
        if ((seen || generated) && s->adj[i] != -INFINITY)
            s->adj[i] = penalised(s->adj[i], p, seen, generated);
    }
}

static void adjust(struct sample *s, const float *logits, const struct sample_params *p,
                   const struct sample_counts *counts, const struct sample_mask *mask) {
    copy_used(s, logits, mask ? mask->used_bits : NULL);
    penalise(s, p, counts);
    for (uint32_t i = 0; i < p->bias_count; i++) {
        float *x = &s->adj[p->bias_ids[i]];
        *x = p->bias[i] <= -100 ? -INFINITY : noise_tame(*x + p->bias[i]);
    }
    for (uint32_t i = 0; mask && i < mask->suppressed_count; i++)
        if (mask->suppressed[i] < s->vocab) s->adj[mask->suppressed[i]] = -INFINITY;
}

static uint32_t first_used(const struct sample *s, const struct sample_mask *mask) {
    if (!mask || !mask->used_bits) return 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        if (mask->used_bits[i / BLOCK] >> i % BLOCK & 1) return i;
    return 0;
}

/* ---- Order: candidates, a heap of the best, a sort of all ---- */

// A heap with the last of its candidates at the top.
static void sift_down(uint64_t *h, uint32_t n, uint32_t i) {
    uint64_t c = h[i];
    for (uint32_t j; (j = 2 * i + 1) < n; i = j) {
        if (j + 1 < n && h[j + 1] > h[j]) j++;
        if (h[j] <= c) break;
        h[i] = h[j];
    }
    h[i] = c;
}

static void sort_heap(uint64_t *h, uint32_t n) {
    for (uint32_t m = n; m > 1; m--) {
        uint64_t last = h[0];
        h[0] = h[m - 1];
        sift_down(h, m - 1, 0);
        h[m - 1] = last;
    }
}

static bool any_above(const float *x, float limit) {
    unsigned any = 0;
    for (int j = 0; j < BLOCK; j++) any |= x[j] > limit;
    return any;
}

// The k first candidates into s->cand, sorted. Answers how many there are.
static uint32_t best_by_heap(struct sample *s, uint32_t k) {
    uint64_t *h = s->cand;
    uint32_t n = 0, i = 0;
    for (; i < s->vocab && n < k; i++)
        if (s->adj[i] != -INFINITY) h[n++] = noise_cand(s->adj[i], i);
    for (uint32_t j = n / 2; j-- > 0;) sift_down(h, n, j);
    // A later id enters only with a greater logit: at the same one it stands behind.
    float limit = n == k ? noise_cand_logit(h[0]) : FLT_MAX;
    while (i < s->vocab) {
        if (i % BLOCK == 0 && s->vocab - i >= BLOCK && !any_above(s->adj + i, limit)) {
            i += BLOCK;
            continue;
        }
        if (s->adj[i] > limit) {
            h[0] = noise_cand(s->adj[i], i);
            sift_down(h, n, 0);
            limit = noise_cand_logit(h[0]);
        }
        i++;
    }
    sort_heap(h, n);
    return n;
}

// One stable pass by RADIX_BITS of the key from bit shift on.
static void radix_pass(const uint64_t *from, uint64_t *to, uint32_t n, unsigned shift) {
    uint32_t start[RADIX_SIZE] = {0}, sum = 0;
    for (uint32_t i = 0; i < n; i++) start[from[i] >> shift & (RADIX_SIZE - 1)]++;
    for (uint32_t d = 0; d < RADIX_SIZE; d++) {
        uint32_t count = start[d];
        start[d] = sum;
        sum += count;
    }
    for (uint32_t i = 0; i < n; i++) to[start[from[i] >> shift & (RADIX_SIZE - 1)]++] = from[i];
}

// All candidates into s->cand, sorted. They start in id order, so a stable sort by logit is enough.
static uint32_t sort_all(struct sample *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        if (s->adj[i] != -INFINITY) s->other[n++] = noise_cand(s->adj[i], i);
    radix_pass(s->other, s->cand, n, 32);
    radix_pass(s->cand, s->other, n, 32 + RADIX_BITS);
    radix_pass(s->other, s->cand, n, 32 + 2 * RADIX_BITS);
    return n;
}

static uint32_t best(struct sample *s, uint32_t k) {
    return k <= HEAP_MAX ? best_by_heap(s, k) : min_u32(k, sort_all(s));
}

/* ---- Steps 3 to 6: which candidates are kept ---- */

// The first of the greatest.
static uint32_t arg_max(const float *x, uint32_t n) {
    uint32_t at = 0, i = 0;
    float max = x[0];
    while (i < n) {
        if (i % BLOCK == 0 && n - i >= BLOCK && !any_above(x + i, max)) {
            i += BLOCK;
            continue;
        }
        if (x[i] > max) max = x[at = i];
        i++;
    }
    return at;
}

static double weigh(struct sample *s, uint32_t n, double temperature) {
    double z0 = noise_cand_logit(s->cand[0]) / temperature, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        s->weight[i] = math_f64_exp(noise_cand_logit(s->cand[i]) / temperature - z0);
        sum += s->weight[i];
    }
    return sum;
}

// The same sum over the whole row, in id order.
static double weigh_all(const struct sample *s, double temperature) {
    double z0 = s->adj[arg_max(s->adj, s->vocab)] / temperature, sum = 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        if (s->adj[i] != -INFINITY) sum += math_f64_exp(s->adj[i] / temperature - z0);
    return sum;
}

// (Number of prefix sums below top_p) + 1, or 0 when they do not get there within n.
static uint32_t nucleus(const struct sample *s, uint32_t n, double total, double top_p) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += s->weight[i] / total;
        if (!(sum < top_p)) return i + 1;
    }
    return 0;
}

// Of the n best that top_k leaves, those that top_p leaves.
static uint32_t keep_best(struct sample *s, const struct sample_params *p, uint32_t n) {
    if (p->top_p >= 1 || n == 0) return n;
    uint32_t kept = nucleus(s, n, weigh(s, n, p->temperature), p->top_p);
    return kept ? kept : n;
}

// Sorted candidates that top_k and top_p leave.
static uint32_t keep_sorted(struct sample *s, const struct sample_params *p) {
    if (p->top_k) return keep_best(s, p, best(s, min_u32(p->top_k, s->vocab)));
    double total = weigh_all(s, p->temperature);
    uint32_t n = best(s, min_u32(NUCLEUS_TRY, s->vocab));
    if (n == 0) return 0;
    weigh(s, n, p->temperature);
    uint32_t kept = nucleus(s, n, total, p->top_p);
    if (kept) return kept;
    n = sort_all(s);
    weigh(s, n, p->temperature);
    kept = nucleus(s, n, total, p->top_p);
    return kept ? kept : n;
}

/* ---- Step 7: the noise ---- */

double sample_noise_u(uint64_t seed, uint64_t position, uint32_t id) {
    return noise_u(noise_base(seed, position), id);
}

double sample_gumbel(uint64_t seed, uint64_t position, uint32_t id) {
    return noise_gumbel(sample_noise_u(seed, position, id));
}

static uint32_t draw_sorted(struct sample *s, uint32_t n, const struct sample_params *p,
                            uint64_t base) {
    double floor = noise_floor(noise_cand_logit(s->cand[0]) / p->temperature, p->min_p);
    double best_score = -INFINITY;
    uint32_t token = (uint32_t)s->cand[0];
    for (uint32_t i = 0; i < n; i++) {
        double z = noise_cand_logit(s->cand[i]) / p->temperature;
        if (!(z >= floor)) break; // sorted: so is every later one
        double score = z + noise_gumbel(noise_u(base, (uint32_t)s->cand[i]));
        if (!(score > best_score)) continue;
        best_score = score;
        token = (uint32_t)s->cand[i];
    }
    return token;
}

// Neither top_k nor top_p: no order is needed but for equal scores.
static uint32_t draw_unsorted(const struct sample *s, const struct sample_params *p,
                              uint64_t base) {
    uint32_t token = arg_max(s->adj, s->vocab);
    double floor = noise_floor(s->adj[token] / p->temperature, p->min_p);
    double best_score = s->adj[token] / p->temperature + noise_gumbel(noise_u(base, token));
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (s->adj[i] == -INFINITY) continue;
        double z = s->adj[i] / p->temperature, u = noise_u(base, i);
        if (!(z >= floor) || z + noise_bound(u) < best_score) continue;
        double score = z + noise_gumbel(u);
        if (score < best_score) continue;
        if (score == best_score && noise_cand(s->adj[i], i) >= noise_cand(s->adj[token], token))
            continue;
        best_score = score;
        token = i;
    }
    return token;
}

uint32_t sample_draw(struct sample *s, const float *logits, const struct sample_params *p,
                     const struct sample_counts *counts, const struct sample_mask *mask,
                     uint64_t position) {
    adjust(s, logits, p, counts, mask);
    uint32_t top = arg_max(s->adj, s->vocab);
    if (s->adj[top] == -INFINITY) return first_used(s, mask);
    if (p->temperature < SAMPLE_TEMPERATURE_MIN || p->top_k == 1) return top;
    uint64_t base = noise_base(p->seed, position);
    if (p->top_k == 0 && p->top_p >= 1) return draw_unsorted(s, p, base);
    return draw_sorted(s, keep_sorted(s, p), p, base);
}

uint32_t sample_draw_best(struct sample *s, const uint32_t *ids, const float *logits,
                          uint32_t count, const struct sample_params *p, uint64_t position) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        float x = noise_tame(logits[i]);
        if (x == -INFINITY) continue;
        // They are in order but for what noise_tame made equal.
        uint64_t c = noise_cand(x, ids[i]);
        uint32_t at = n++;
        for (; at && s->cand[at - 1] > c; at--) s->cand[at] = s->cand[at - 1];
        s->cand[at] = c;
    }
    if (!n) return ids[0];
    if (p->temperature < SAMPLE_TEMPERATURE_MIN) return (uint32_t)s->cand[0];
    n = keep_best(s, p, min_u32(n, p->top_k));
    return draw_sorted(s, n, p, noise_base(p->seed, position));
}

static uint32_t not_finite(float x) { // 0 or 1
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return (b & 0x7f800000) == 0x7f800000;
}

bool sample_finite(const float *logits, uint32_t vocab_size, const uint32_t *used_bits) {
    for (uint32_t i = 0; i < vocab_size; i += BLOCK) {
        uint32_t n = min_u32(BLOCK, vocab_size - i), bad = 0;
        for (uint32_t j = 0; j < n; j++) bad |= not_finite(logits[i + j]) << j;
        if (bad & (used_bits ? used_bits[i / BLOCK] : ~0u)) return false;
    }
    return true;
}

/* ---- Hash and logprobs ---- */

static uint64_t rotate(uint64_t x, int n) {
    return x << n | x >> (64 - n);
}

/* Eight lanes, each a chain of steps that are bijections of the lane for a given word and of the word for a given
 * lane; then one chain over the lanes. So two rows (or two h) that differ in one place cannot meet. */
uint64_t sample_hash_row(uint64_t h, const float *logits, uint32_t vocab_size) {
    enum { LANES = 8 };
    static const uint64_t odd = 0x9E3779B97F4A7C15u;
    const char *p = (const char *)logits;
    size_t bytes = (size_t)vocab_size * sizeof *logits;
    uint64_t lane[LANES], word[LANES];
    for (int j = 0; j < LANES; j++) lane[j] = mix_u64(odd * (uint64_t)(j + 1));
    lane[0] ^= h;
    for (size_t at = 0; at < bytes; at += sizeof word) {
        size_t n = min_size(sizeof word, bytes - at);
        if (n < sizeof word) memset(word, 0, sizeof word);
        memcpy(word, p + at, n);
        for (int j = 0; j < LANES; j++) lane[j] = rotate((lane[j] ^ word[j]) * odd, 29);
    }
    uint64_t r = bytes;
    for (int j = 0; j < LANES; j++) r = mix_u64((r ^ lane[j]) * odd);
    return r;
}

void sample_logprobs(struct sample *s, const float *logits, uint32_t drawn, uint32_t top_count,
                     float *ret_drawn, struct sample_logprob *ret_top) {
    copy_used(s, logits, NULL);
    double max = s->adj[arg_max(s->adj, s->vocab)];
    double log_total = math_f64_log(weigh_all(s, 1)) + max;
    *ret_drawn = (float)(noise_tame(logits[drawn]) - log_total);
    uint32_t n = top_count ? best(s, min_u32(top_count, s->vocab)) : 0;
    for (uint32_t i = 0; i < top_count; i++) {
        bool have = i < n; // fewer only where the row holds values that are no numbers
        ret_top[i].id = have ? (uint32_t)s->cand[i] : 0;
        ret_top[i].logprob = have ? (float)(noise_cand_logit(s->cand[i]) - log_total) : -INFINITY;
    }
}
