/* params: what one generating request asks for, every default filled in. Strings and lists live in the request's
 * arena; messages are a jansson tree of their own. Plain data. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "router/text/template.h"

struct model;

enum {
    PARAMS_STOPS_MAX = 16,
    PARAMS_STOP_BYTES_MAX = 1024,
    PARAMS_STOP_IDS_MAX = 64,
    PARAMS_BIAS_MAX = 1024,
    PARAMS_BIAS_FORBIDS = -100,
    PARAMS_TEXT_BYTES_MAX = 1024,  // user, cache_salt and their kin
    PARAMS_PROMPTS_MAX = 32,       // of a completion, times n
    PARAMS_ROOM_LEFT = -1,         // of max_tokens
    PARAMS_COMPLETION_TOKENS = 16, // of a completion that does not say: OpenAI's
};

enum tool_choice { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_FORCED };

struct params {
    const char *model; // as the client wrote it; NULL: absent
    json_t *messages;  // normalised: see messages.h
    json_t *tools;     // as given, checked; NULL: none
    enum tool_choice tool_choice;
    bool parallel_calls;

    json_t *prompts; // of a completion: an array of texts or of lists of ids
    bool echo;
    bool echo_only;  // max_tokens 0
    int64_t best_of; // 0: absent

    bool stream;
    bool include_usage, continuous_usage;
    int64_t stream_interval; // rounds

    int64_t max_tokens, max_completion_tokens; // 0: absent; or PARAMS_ROOM_LEFT
    int64_t min_tokens;
    double temperature, top_p, min_p;
    int64_t top_k; // 0: off
    double presence, frequency, repetition;
    uint32_t *bias_ids;
    float *bias;
    uint32_t bias_count;
    bool has_seed;
    uint64_t seed;
    int64_t n;

    const char **stops;
    size_t *stop_lens;
    size_t stop_count;
    uint32_t *stop_ids;
    uint32_t stop_id_count;
    bool include_stop;
    bool ignore_eos;
    bool skip_special;

    bool logprobs;
    int64_t top_logprobs;

    const char *reasoning_effort; // the field; NULL: absent
    const char *kwargs_effort;    // chat_template_kwargs'; wins
    enum template_tri enable_thinking, preserve_thinking;
    bool add_vision_id;
    bool include_reasoning;
    int64_t think_budget; // ids of a thought; -1: no bound
    bool add_generation_prompt, continue_final;

    bool draft;
    bool return_token_ids;
    bool return_logits_hash;
    int64_t priority;
    const char *cache_salt;              // NULL: absent
    const char *prompt_cache_key, *user; // NULL: absent; for affinity
};

// The defaults: the checkpoint's sampling values, or OpenAI's with openai_defaults.
void params_init(struct params *p, const struct model *m, bool openai_defaults);
void params_fini(struct params *p); // the JSON in it
