/* rope_rule: see rope_rule.h. */
#include "worker/engine/rope_rule.h"
#include "kernels/math_f64.h"
#include "worker/engine/model_config.h"

#include <math.h>
#include <stdio.h>

static const double pi = 3.14159265358979323846;

// theta^(2i/R) rounded to fp32
static float power(const struct model_rope *r, uint32_t i) {
    float exponent = (float)(2 * i) / (float)r->rotary_dim;
    return (float)math_f64_exp((double)exponent * math_f64_log(r->theta));
}

// The dimension at which `turns` full turns fit into the original context.
static double find_dim(const struct model_rope *r, double turns) {
    double ratio = (double)r->original_max_position / (turns * 2 * pi);
    return (double)r->rotary_dim * math_f64_log(ratio) / (2 * math_f64_log(r->theta));
}

static double magnitude(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * math_f64_log(factor) + 1;
}

static float yarn_scale(const struct model_rope *r) {
    if (r->attention_factor > 0) return (float)r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return (float)(magnitude(r->factor, r->mscale) / magnitude(r->factor, r->mscale_all_dim));
    return (float)magnitude(r->factor, 1);
}

static void yarn_blend(float *freq, uint32_t pairs, const struct model_rope *r) {
    double low = find_dim(r, r->beta_fast), high = find_dim(r, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    if (low < 0) low = 0;
    if (high > r->rotary_dim - 1) high = r->rotary_dim - 1;
    if (low == high) high += 0.001;
    for (uint32_t i = 0; i < pairs; i++) {
        float ramp = (float)(((double)i - low) / (high - low));
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        float keep = 1.0f - ramp, slow = 1.0f / ((float)r->factor * power(r, i));
        freq[i] = slow * (1.0f - keep) + freq[i] * keep;
    }
}

void rope_rule_make(struct rope_rule *ret, float *freq, const struct model_rope *r) {
    *ret = (struct rope_rule){.pairs = r->rotary_dim / 2, .scale = 1};
    for (uint32_t i = 0; i < ret->pairs; i++) freq[i] = 1.0f / power(r, i);
    if (r->type == MODEL_ROPE_DEFAULT) {
        snprintf(ret->text, sizeof ret->text, "default theta=%.9g dim=%u", r->theta, r->rotary_dim);
        return;
    }
    yarn_blend(freq, ret->pairs, r);
    ret->scale = yarn_scale(r);
    snprintf(ret->text, sizeof ret->text,
             "yarn theta=%.9g dim=%u factor=%.9g original=%u beta=%.9g,%.9g scale=%.9g truncate=%d",
             r->theta, r->rotary_dim, r->factor, r->original_max_position, r->beta_fast,
             r->beta_slow, (double)ret->scale, r->truncate);
}
