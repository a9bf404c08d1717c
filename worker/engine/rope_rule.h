/* rope_rule: the rotary frequencies of a config, and the rule as a line of text for fingerprints. Pure, any thread. */
#pragma once
#include <stdint.h>

struct model_rope;

enum { ROPE_RULE_TEXT_BYTES = 200 };

struct rope_rule {
    uint32_t pairs; // rotary_dim / 2
    float scale;    // on cos and sin: YaRN's attention factor, else 1
    char text[ROPE_RULE_TEXT_BYTES];
};

// Fills freq[pairs] in fp32 as transformers makes them: 1 / theta^(2i/R), each step rounded to fp32; YaRN's blend
// (Peng et al. 2023, section 3) with the parameters of the config.
void rope_rule_make(struct rope_rule *ret, float *freq, const struct model_rope *r);
