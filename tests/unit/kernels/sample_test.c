/* sample: published draw values, distributions against probabilities worked out here in another way, and proof that
 * this check can fail; masks, penalties, logprobs, the hash. */
#include "common/err.h"
#include "common/num.h"
#include "kernels/sample/sample.h"
#include "tests/lib/test.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 50, DRAWS = 200000 };
static const double P_MIN = 1e-6;

static const struct sample_params plain = {
    .temperature = 1, .top_p = 1, .repetition = 1, .seed = 1};

// A row of a test: spread values, with some equal ones.
static void fill_row(float *row, uint32_t vocab, uint64_t key, float spread) {
    for (uint32_t i = 0; i < vocab; i++)
        row[i] = spread * ((float)(mix_u64(key * 1000003 + i) >> 40) * 0x1p-24f - 0.5f);
    if (vocab > 12) row[7] = row[11];
}

/* ---- Published values ---- */

TEST(a_row_is_finite_when_every_id_in_use_is) {
    enum { N = 70 };
    float x[N];
    uint32_t used[3] = {~0u, ~1u, 0x3f};
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int i = 0; i < N; i++) x[i] = i % 2 ? 3e38f : -0.0f;
    CHECK(sample_finite(x, N, NULL) && sample_finite(x, N, used));
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 4; k++) {
            float was = x[i];
            x[i] = bad[k];
            CHECK(!sample_finite(x, N, NULL));
            CHECK_EQ(sample_finite(x, N, used), i == 32); // the only one that is not in use
            x[i] = was;
        }
}

TEST(noise_has_the_published_values) {
    static const struct {
        uint64_t seed, position;
        uint32_t id;
        double u, gumbel;
    } cases[] = {
        {0, 0, 0, 0.20310281705476102, -0.4662735186548661},
        {1234, 11, 42, 0.3764920675936793, 0.02341367249129064},
        {1234, 11, 43, 0.7097441150205746, 1.0704599839551112},
        {1, 100000, 248319, 0.4160925589478392, 0.13142213752616855},
        {9223372036854775807u, 5, 7, 0.5111330581246969, 0.3987993711464117},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double u = sample_noise_u(cases[i].seed, cases[i].position, cases[i].id);
        CHECK_NEAR(u, cases[i].u, 0);
        CHECK_NEAR(sample_gumbel(cases[i].seed, cases[i].position, cases[i].id), cases[i].gumbel,
                   2e-16);
    }
}

TEST(draws_have_the_published_values) {
    static const float row[8] = {2.0f, 1.5f, 1.5f, 0.3f, -0.2f, 0.0f, 1.0f, -3.0f};
    static const struct {
        uint64_t seed, position;
        double temperature;
        uint32_t top_k;
        double top_p, min_p;
        uint32_t token;
    } cases[] = {
        {1234, 11, 0.7, 5, 0.9, 0.05, 1},
        {1234, 12, 0.7, 5, 0.9, 0.05, 0},
        {1234, 13, 1.0, 8, 1.0, 1e-9, 0},
        {7, 13, 0.7, 8, 0.95, 0.2, 2},
    };
    struct sample *s = sample_new(8);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sample_params p = plain;
        p.seed = cases[i].seed, p.temperature = cases[i].temperature, p.top_k = cases[i].top_k;
        p.top_p = cases[i].top_p, p.min_p = cases[i].min_p;
        CHECK_EQ(sample_draw(s, row, &p, NULL, NULL, cases[i].position), cases[i].token);
    }
    sample_free(s);
}

/* ---- Distributions. The probabilities below use the C library's exp, a quadratic sort and none of sample.c. ---- */

enum mistake { // of the check's own model of a draw: each must be noticed
    MISTAKE_NONE,
    MISTAKE_MIN_P_FIRST,         // min_p before top_p, top_p over what it leaves
    MISTAKE_TOP_P_OVER_ALL,      // top_p's softmax not renormalised after top_k
    MISTAKE_TOP_P_BEFORE_T,      // top_p over the softmax without temperature
    MISTAKE_NUCLEUS_SHORT,       // one id fewer in the nucleus
    MISTAKE_REPETITION_DIVIDES,  // negative logits divided too
    MISTAKE_PRESENCE_ON_PROMPT,  // presence for ids of the prompt
    MISTAKE_FREQUENCY_ONCE,      // frequency not times the count
    MISTAKE_BIAS_AFTER_T,        // bias not scaled by temperature
    MISTAKE_TEMPERATURE_INVERSE, // times T
    MISTAKE_NO_MASK,
    MISTAKE_COUNT,
};

struct setting_case {
    const char *name;
    struct sample_params p;
    bool counts, mask;
};

struct probs {
    double z[VOCAB], p[VOCAB];
    int order[VOCAB], n; // kept ids, best first
};

static void sum_to_one(struct probs *r) {
    double sum = 0;
    for (int i = 0; i < r->n; i++) sum += r->p[r->order[i]];
    for (int i = 0; i < r->n; i++) r->p[r->order[i]] /= sum;
}

static void cut(struct probs *r, int n) {
    for (int i = n; i < r->n; i++) r->p[r->order[i]] = 0;
    if (n < r->n) r->n = n;
}

static void cut_top_p(struct probs *r, const double *p, double top_p, bool shorter) {
    double sum = 0;
    int n = 0;
    while (n < r->n && sum < top_p) sum += p[r->order[n++]];
    if (top_p >= 1) return;
    n -= shorter;
    cut(r, n > 1 ? n : 1);
}

static void cut_min_p(struct probs *r, double min_p) {
    int n = 0;
    while (n < r->n && r->p[r->order[n]] >= min_p * r->p[r->order[0]]) n++;
    cut(r, n);
}

static double step_one(const struct setting_case *c, double x, int id,
                       const struct sample_counts *k, enum mistake m) {
    bool seen = c->counts && k->prompt_seen[id];
    double times = c->counts ? k->generated[id] : 0;
    if (seen || times)
        x = x > 0 || m == MISTAKE_REPETITION_DIVIDES ? x / c->p.repetition : x * c->p.repetition;
    if (times || (m == MISTAKE_PRESENCE_ON_PROMPT && seen)) x -= c->p.presence;
    x -= c->p.frequency * (m == MISTAKE_FREQUENCY_ONCE ? times > 0 : times);
    return x;
}

static void expected(struct probs *r, const float *row, const struct setting_case *c,
                     const struct sample_counts *k, const struct sample_mask *mask,
                     enum mistake m) {
    double t = m == MISTAKE_TEMPERATURE_INVERSE ? 1 / c->p.temperature : c->p.temperature;
    double all[VOCAB], cold[VOCAB], sum = 0, cold_sum = 0;
    r->n = 0;
    for (int i = 0; i < VOCAB; i++) {
        double bias = 0;
        bool gone = c->mask && m != MISTAKE_NO_MASK && !(mask->used_bits[i / 32] >> i % 32 & 1);
        for (uint32_t j = 0; c->mask && m != MISTAKE_NO_MASK && j < mask->suppressed_count; j++)
            gone |= mask->suppressed[j] == (uint32_t)i;
        for (uint32_t j = 0; j < c->p.bias_count; j++)
            if (c->p.bias_ids[j] == (uint32_t)i) bias = c->p.bias[j];
        double x = step_one(c, row[i], i, k, m);
        r->z[i] = m == MISTAKE_BIAS_AFTER_T ? x / t + bias : (x + bias) / t;
        r->p[i] = all[i] = cold[i] = 0;
        if (gone || bias <= -100) continue;
        sum += all[i] = r->p[i] = exp(r->z[i]);
        cold_sum += cold[i] = exp(r->z[i] * t);
        int at = r->n++;
        for (; at > 0 && r->z[r->order[at - 1]] < r->z[i]; at--) r->order[at] = r->order[at - 1];
        r->order[at] = i;
    }
    for (int i = 0; i < VOCAB; i++) all[i] /= sum, cold[i] /= cold_sum;
    if (c->p.top_k) cut(r, (int)c->p.top_k);
    sum_to_one(r);
    if (m == MISTAKE_MIN_P_FIRST) cut_min_p(r, c->p.min_p), sum_to_one(r);
    double now[VOCAB];
    memcpy(now,
           m == MISTAKE_TOP_P_OVER_ALL   ? all
           : m == MISTAKE_TOP_P_BEFORE_T ? cold
                                         : r->p,
           sizeof now);
    cut_top_p(r, now, c->p.top_p, m == MISTAKE_NUCLEUS_SHORT);
    if (m != MISTAKE_MIN_P_FIRST) cut_min_p(r, c->p.min_p);
    sum_to_one(r);
}

// Upper tail of the chi-square distribution: Q(df / 2, x / 2), by the series or the continued fraction of the
// incomplete gamma function (Abramowitz and Stegun 6.5.29 and 6.5.31).
static double chi_square_tail(double x, int df) {
    double a = df / 2.0, y = x / 2, front = exp(-y + a * log(y) - lgamma(a));
    if (df == 0 || x <= 0) return 1;
    if (y < a + 1) {
        double term = 1 / a, sum = term;
        for (int n = 1; n < 10000 && term > sum * 1e-16; n++) sum += term *= y / (a + n);
        return 1 - front * sum;
    }
    double f = 0;
    for (int n = 2000; n > 0; n--) f = n * (n - a) / (y + 2 * n + 1 - a - f);
    return front / (y + 1 - a - f);
}

// How likely counts as far off as these are. Cells with few expected draws are put together.
static double fit(const uint32_t *counts, const struct probs *r) {
    double chi = 0, rest_want = 0, rest_have = 0;
    int cells = 0;
    for (int i = 0; i < VOCAB; i++) {
        double want = r->p[i] * DRAWS;
        if (r->p[i] == 0) {
            if (counts[i]) return 0; // cannot be
            continue;
        }
        if (want < 10) {
            rest_want += want, rest_have += counts[i];
            continue;
        }
        chi += (counts[i] - want) * (counts[i] - want) / want;
        cells++;
    }
    if (rest_want > 0) {
        chi += (rest_have - rest_want) * (rest_have - rest_want) / fmax(rest_want, 1);
        cells++;
    }
    return chi_square_tail(chi, cells - 1);
}

static const uint32_t bias_ids[] = {3, 20, 31, 44};
static const float bias[] = {2.5f, -100, 1.25f, -3};
static uint8_t seen[VOCAB];
static uint32_t generated[VOCAB];
static const struct sample_counts counts_of = {seen, generated};
static const uint32_t used[2] = {0xfdffffff, 0x0003bfff}, suppressed[] = {5, 9};
static const struct sample_mask mask_of = {used, suppressed, 2};

static const struct setting_case cases[] = {
    {"T alone", {.top_p = 1, .repetition = 1}, false, false},
    {"top_k", {.top_k = 7, .top_p = 1, .repetition = 1}, false, false},
    {"top_p", {.top_p = 0.7, .repetition = 1}, false, false},
    {"min_p", {.top_p = 1, .min_p = 0.08, .repetition = 1}, false, false},
    {"top_k top_p min_p",
     {.top_k = 20, .top_p = 0.9, .min_p = 0.25, .repetition = 1},
     false,
     false},
    {"bias",
     {.top_p = 1, .repetition = 1, .bias_ids = bias_ids, .bias = bias, .bias_count = 4},
     false,
     false},
    {"penalties", {.top_p = 1, .presence = 0.8, .frequency = 0.3, .repetition = 1.4}, true, false},
    {"mask, all settings",
     {.top_k = 25,
      .top_p = 0.95,
      .min_p = 0.02,
      .presence = -0.5,
      .frequency = 0.2,
      .repetition = 0.8,
      .bias_ids = bias_ids,
      .bias = bias,
      .bias_count = 4},
     true,
     true},
};
enum { CASES = sizeof cases / sizeof cases[0] };
static const double temperatures[] = {0.7, 1, 1.5};

static void fill_counts(void) {
    for (int i = 0; i < VOCAB; i++)
        seen[i] = i % 3 == 0, generated[i] = i % 5 == 0 ? (uint32_t)(i / 10 + 1) : 0;
}

static void draw_many(const float *row, const struct setting_case *c, uint32_t *ret_counts) {
    struct sample *s = sample_new(VOCAB);
    memset(ret_counts, 0, VOCAB * sizeof *ret_counts);
    for (uint64_t i = 0; i < DRAWS; i++)
        ret_counts[sample_draw(s, row, &c->p, c->counts ? &counts_of : NULL,
                               c->mask ? &mask_of : NULL, i)]++;
    sample_free(s);
}

TEST(draws_follow_the_probabilities_of_every_setting) {
    static float row[VOCAB];
    static uint32_t have[VOCAB];
    static struct probs r;
    double least = 1;
    fill_counts();
    fill_row(row, VOCAB, 5, 8);
    for (int i = 0; i < CASES; i++)
        for (int t = 0; t < 3; t++) {
            struct setting_case c = cases[i];
            c.p.temperature = temperatures[t];
            c.p.seed = (uint64_t)(100 + 10 * i + t);
            draw_many(row, &c, have);
            expected(&r, row, &c, &counts_of, &mask_of, MISTAKE_NONE);
            double p = fit(have, &r);
            if (!(p > P_MIN))
                test_fail(__FILE__, __LINE__, "%s at T %g: p = %g", c.name, c.p.temperature, p);
            least = fmin(least, p);
        }
    test_note("%d settings, %d draws each, least p %.3g", CASES * 3, DRAWS, least);
}

/* A check that cannot fail shows nothing: the true draws must not fit a model with a mistake in it. */
TEST(draws_do_not_fit_probabilities_with_a_planted_mistake) {
    static float row[VOCAB];
    static uint32_t have[CASES][VOCAB];
    static struct probs r;
    static const int in_case[MISTAKE_COUNT] = {
        // where the mistake shows
        [MISTAKE_MIN_P_FIRST] = 4,         [MISTAKE_TOP_P_OVER_ALL] = 4,
        [MISTAKE_TOP_P_BEFORE_T] = 2,      [MISTAKE_NUCLEUS_SHORT] = 2,
        [MISTAKE_REPETITION_DIVIDES] = 6,  [MISTAKE_PRESENCE_ON_PROMPT] = 6,
        [MISTAKE_FREQUENCY_ONCE] = 6,      [MISTAKE_BIAS_AFTER_T] = 5,
        [MISTAKE_TEMPERATURE_INVERSE] = 0, [MISTAKE_NO_MASK] = 7};
    fill_counts();
    fill_row(row, VOCAB, 5, 8);
    for (int m = 1; m < MISTAKE_COUNT; m++) {
        struct setting_case c = cases[in_case[m]];
        c.p.temperature = 1.5;
        c.p.seed = (uint64_t)m;
        uint32_t *h = have[in_case[m]];
        draw_many(row, &c, h);
        expected(&r, row, &c, &counts_of, &mask_of, MISTAKE_NONE);
        CHECK(fit(h, &r) > P_MIN);
        expected(&r, row, &c, &counts_of, &mask_of, (enum mistake)m);
        double p = fit(h, &r);
        if (p > P_MIN) test_fail(__FILE__, __LINE__, "mistake %d is not noticed: p = %g", m, p);
    }
}

TEST(another_seed_gives_another_sequence_and_the_same_seed_the_same) {
    float row[VOCAB];
    struct sample *s = sample_new(VOCAB);
    struct sample_params a = plain, b = plain;
    int differ = 0;
    b.seed = a.seed + 1;
    fill_row(row, VOCAB, 9, 2);
    for (uint64_t i = 0; i < 1000; i++) {
        uint32_t x = sample_draw(s, row, &a, NULL, NULL, i);
        differ += x != sample_draw(s, row, &b, NULL, NULL, i);
        CHECK_EQ(sample_draw(s, row, &a, NULL, NULL, i), x);
    }
    CHECK(differ > 800);
    sample_free(s);
}

/* ---- One answer, whichever way a draw takes ---- */

// The contract word for word: a quadratic sort, every noise, no shortcut.
static uint32_t draw_slowly(const float *row, uint32_t vocab, const struct sample_params *p,
                            uint64_t position) {
    uint32_t *order = malloc(vocab * sizeof *order), n = vocab;
    for (uint32_t i = 0; i < vocab; i++) {
        uint32_t at = i;
        for (; at > 0 && row[order[at - 1]] < row[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    if (p->top_k) n = min_u32(n, p->top_k);
    double z0 = row[order[0]] / p->temperature, total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) total += exp(row[order[i]] / p->temperature - z0);
    uint32_t kept = p->top_p < 1 ? 0 : n;
    while (kept < n && (kept == 0 || sum < p->top_p))
        sum += exp(row[order[kept++]] / p->temperature - z0) / total;
    uint32_t token = order[0];
    double best = -INFINITY;
    for (uint32_t i = 0; i < kept; i++) {
        double z = row[order[i]] / p->temperature;
        if (p->min_p > 0 && z < z0 + log(p->min_p)) break;
        double score = z + sample_gumbel(p->seed, position, order[i]);
        if (score > best) best = score, token = order[i];
    }
    free(order);
    return token;
}

TEST(shortcuts_draw_what_the_plain_rule_draws) {
    enum { V = 3000 };
    static float row[V];
    static const struct {
        uint32_t top_k;
        double top_p, min_p, temperature;
        float spread;
    } ways[] = {
        {20, 0.95, 0, 1, 20}, {20, 1, 0, 0.6, 20},    {1500, 0.999, 0, 1, 4}, {3000, 1, 0, 1, 2},
        {0, 0.9, 0, 1, 30},   {0, 0.9, 0, 1, 0.5f},   {0, 1, 0, 1, 1},        {0, 1, 0, 1.5, 20},
        {0, 1, 0.5, 1, 3},    {0, 0.99, 0.01, 2, 15}, {0, 0, 0, 1, 1},        {2, 1, 0, 2, 0},
        {0, 1, 0, 1, 0},      {300, 0.5, 0, 1, 0},    {0, 0.999999, 0, 1, 1}, {0, 1, 1, 1, 0},
    };
    struct sample *s = sample_new(V);
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++)
        for (uint64_t i = 0; i < 12; i++) {
            struct sample_params p = plain;
            p.top_k = ways[w].top_k, p.top_p = ways[w].top_p, p.min_p = ways[w].min_p;
            p.temperature = ways[w].temperature, p.seed = i * 77;
            fill_row(row, V, i, ways[w].spread);
            uint32_t a = sample_draw(s, row, &p, NULL, NULL, i), b = draw_slowly(row, V, &p, i);
            if (a != b)
                test_fail(__FILE__, __LINE__, "way %zu, draw %u: found %u, wanted %u", w,
                          (unsigned)i, a, b);
        }
    sample_free(s);
}

TEST(arg_max_takes_the_smallest_id_of_equal_logits) {
    float row[40] = {0};
    struct sample *s = sample_new(40);
    struct sample_params p = plain;
    row[33] = row[12] = row[39] = 1;
    p.temperature = 0;
    CHECK_EQ(sample_draw(s, row, &p, NULL, NULL, 3), 12);
    p.temperature = 1, p.top_k = 1;
    CHECK_EQ(sample_draw(s, row, &p, NULL, NULL, 3), 12);
    p.temperature = 1e-9, p.top_k = 0;
    CHECK_EQ(sample_draw(s, row, &p, NULL, NULL, 3), 12);
    memset(row, 0, sizeof row);
    row[1] = -0.0f; // equal to the others, though its bits are not
    p.temperature = 0;
    CHECK_EQ(sample_draw(s, row, &p, NULL, NULL, 3), 0);
    p.temperature = 1, p.top_k = 2;
    for (uint64_t i = 0; i < 100; i++) CHECK(sample_draw(s, row, &p, NULL, NULL, i) < 2);
    sample_free(s);
}

TEST(masked_ids_are_never_drawn) {
    float row[VOCAB];
    struct sample *s = sample_new(VOCAB);
    uint32_t few[2] = {1u << 17 | 1u << 30, 1u << 9}, stop[] = {30};
    struct sample_mask mask = {few, stop, 1};
    static const struct sample_params ways[] = {
        {.temperature = 0, .top_p = 1, .repetition = 1},
        {.temperature = 2, .top_p = 1, .repetition = 1},
        {.temperature = 2, .top_p = 0.99, .repetition = 1},
        {.temperature = 2, .top_k = 20, .top_p = 1, .repetition = 1},
    };
    fill_row(row, VOCAB, 3, 8);
    for (size_t w = 0; w < 4; w++)
        for (uint64_t i = 0; i < 200; i++) {
            uint32_t x = sample_draw(s, row, &ways[w], NULL, &mask, i);
            CHECK(x == 17 || x == 41);
        }
    sample_free(s);
}

/* Nothing left to draw must still give an answer that exists, not id 2^32 - 1 or a crash. */
TEST(with_every_id_masked_the_smallest_in_use_is_drawn) {
    float row[VOCAB] = {0};
    uint32_t few[2] = {1u << 17 | 1u << 30, 0}, all[] = {17, 30};
    struct sample_mask mask = {few, all, 2};
    struct sample *s = sample_new(VOCAB);
    CHECK_EQ(sample_draw(s, row, &plain, NULL, &mask, 0), 17);
    few[0] = 0;
    CHECK_EQ(sample_draw(s, row, &plain, NULL, &mask, 0), 0);
    sample_free(s);
}

TEST(logits_that_are_no_numbers_do_not_break_a_draw) {
    float row[VOCAB];
    struct sample *s = sample_new(VOCAB);
    for (int i = 0; i < VOCAB; i++) row[i] = i % 2 ? NAN : -INFINITY;
    CHECK_EQ(sample_draw(s, row, &plain, NULL, NULL, 0), 0);
    row[23] = -5;
    for (double t = 0; t < 2; t += 0.5) {
        struct sample_params p = plain;
        p.temperature = t;
        CHECK_EQ(sample_draw(s, row, &p, NULL, NULL, 0), 23);
        p.top_k = 5;
        CHECK_EQ(sample_draw(s, row, &p, NULL, NULL, 0), 23);
        p.top_k = 0, p.top_p = 0.5;
        CHECK_EQ(sample_draw(s, row, &p, NULL, NULL, 0), 23);
    }
    row[9] = INFINITY;
    CHECK_EQ(sample_draw(s, row, &plain, NULL, NULL, 0), 9);
    sample_free(s);
}

TEST(a_draw_leaves_the_logits_alone) {
    float row[VOCAB], copy[VOCAB];
    struct sample *s = sample_new(VOCAB);
    fill_counts();
    fill_row(row, VOCAB, 3, 8);
    memcpy(copy, row, sizeof row);
    struct setting_case c = cases[CASES - 1];
    c.p.temperature = 1;
    sample_draw(s, row, &c.p, &counts_of, &mask_of, 0);
    CHECK_MEM(row, copy, sizeof row);
    sample_free(s);
}

TEST(settings_out_of_range_are_refused_by_name) {
    static const uint32_t bad_id[] = {VOCAB};
    static const float zero[] = {0}, huge[] = {101}, nan[] = {NAN};
    static const uint32_t good_id[] = {0};
    static const struct {
        struct sample_params p;
        const char *part;
    } bad[] = {
        {{.temperature = -0.1, .top_p = 1, .repetition = 1},
         "temperature: wanted 0 to 2, found -0.1"},
        {{.temperature = 2.1, .top_p = 1, .repetition = 1}, "temperature"},
        {{.temperature = NAN, .top_p = 1, .repetition = 1}, "temperature"},
        {{.temperature = 1, .top_p = 1.5, .repetition = 1}, "top_p"},
        {{.temperature = 1, .top_p = 1, .min_p = -1, .repetition = 1}, "min_p"},
        {{.temperature = 1, .top_p = 1, .presence = 2.5, .repetition = 1}, "presence_penalty"},
        {{.temperature = 1, .top_p = 1, .frequency = -2.5, .repetition = 1}, "frequency_penalty"},
        {{.temperature = 1, .top_p = 1, .repetition = 0}, "repetition_penalty: wanted more than 0"},
        {{.temperature = 1, .top_p = 1, .repetition = 3}, "repetition_penalty"},
        {{.temperature = 1, .top_p = 1, .repetition = 1, .top_k = VOCAB + 1},
         "top_k: wanted at most 50"},
        {{.temperature = 1,
          .top_p = 1,
          .repetition = 1,
          .bias_ids = bad_id,
          .bias = zero,
          .bias_count = 1},
         "logit_bias: wanted ids below 50, found 50"},
        {{.temperature = 1,
          .top_p = 1,
          .repetition = 1,
          .bias_ids = good_id,
          .bias = huge,
          .bias_count = 1},
         "logit_bias: wanted -100 to 100, found 101"},
        {{.temperature = 1,
          .top_p = 1,
          .repetition = 1,
          .bias_ids = good_id,
          .bias = nan,
          .bias_count = 1},
         "logit_bias"},
        {{.temperature = 1, .top_p = 1, .repetition = 1, .bias_count = 1026}, "1025"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err e = {0};
        CHECK_EQ(sample_check(&bad[i].p, VOCAB, &e), ST_INVAL);
        CHECK_HAS(e.msg, bad[i].part);
    }
    for (int i = 0; i < CASES; i++) {
        struct err e = {0};
        struct sample_params p = cases[i].p;
        CHECK_OK(sample_check(&p, VOCAB, &e), e);
    }
}

TEST(logprobs_are_those_of_the_softmax) {
    float row[VOCAB], lp;
    struct sample_logprob top[20];
    struct sample *s = sample_new(VOCAB);
    fill_row(row, VOCAB, 21, 12);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) sum += exp(row[i]);
    sample_logprobs(s, row, 13, 20, &lp, top);
    CHECK_NEAR(lp, row[13] - log(sum), 1e-6);
    for (int i = 0; i < 20; i++) {
        CHECK_NEAR(top[i].logprob, row[top[i].id] - log(sum), 1e-6);
        int before = 0; // ids that stand before it
        for (uint32_t j = 0; j < VOCAB; j++)
            before += row[j] > row[top[i].id] || (row[j] == row[top[i].id] && j < top[i].id);
        CHECK_EQ(before, i);
    }
    sample_logprobs(s, row, 13, 0, &lp, NULL);
    CHECK_NEAR(lp, row[13] - log(sum), 1e-6);
    sample_free(s);
}

TEST(any_single_bit_of_any_logit_changes_the_hash) {
    enum { V = 77 };
    float row[V];
    fill_row(row, V, 2, 10);
    uint64_t h = sample_hash_row(0, row, V);
    for (int i = 0; i < V; i++)
        for (int b = 0; b < 32; b++) {
            uint32_t bits;
            memcpy(&bits, &row[i], 4);
            bits ^= 1u << b;
            memcpy(&row[i], &bits, 4);
            CHECK(sample_hash_row(0, row, V) != h);
            bits ^= 1u << b;
            memcpy(&row[i], &bits, 4);
        }
    CHECK_EQ_U64(sample_hash_row(0, row, V), h);
    for (int b = 0; b < 64; b++) CHECK(sample_hash_row(1ull << b, row, V) != h);
}

TEST(the_order_of_logits_and_of_rows_changes_the_hash) {
    float a[64], b[64];
    fill_row(a, 64, 1, 10), fill_row(b, 64, 2, 10);
    uint64_t h = sample_hash_row(0, a, 64);
    CHECK(sample_hash_row(h, b, 64) != sample_hash_row(sample_hash_row(0, b, 64), a, 64));
    for (int i = 0; i < 63; i++) {
        if (a[i] == a[i + 1]) continue;
        float x = a[i];
        a[i] = a[i + 1], a[i + 1] = x;
        CHECK(sample_hash_row(0, a, 64) != h);
        a[i + 1] = a[i], a[i] = x;
    }
    CHECK(sample_hash_row(0, a, 63) != h);
    float zeros[33] = {0};
    CHECK(sample_hash_row(0, zeros, 32) != sample_hash_row(0, zeros, 33));
}
