/* bench: what the parts of `railyard bench concurrent` and `bench compare` share: cells, their replies and figures, and
 * the receipt that holds them all.
 *
 * A cell is a class of prompts, a way to draw and a company: "code/greedy/4" is four code prompts at once, greedy. A
 * stream of a cell has a number; its number alone fixes its prompt and seed, so stream 3 asks the same thing in every
 * cell of one class and way. Main thread only. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/sha256.h"

enum {
    BENCH_LEVELS_MAX = 16,
    BENCH_STREAMS_MAX = 1024, // of one level
    BENCH_TEXT_BYTES = 128,
    BENCH_RECEIPT_VERSION = 2,
};

enum bench_class { BENCH_CODE, BENCH_CHAT, BENCH_CLASS_COUNT };
enum bench_draw { BENCH_GREEDY, BENCH_SAMPLED, BENCH_DRAW_COUNT };
enum bench_kind {
    BENCH_SERIAL, // one stream at a time, "draft": false
    BENCH_ALONE,  // one stream at a time
    BENCH_LEVEL,  // `level` streams at once
    BENCH_COLD,   // one prompt that nothing is kept of, one token out
};
const char *bench_class_name(enum bench_class c);
const char *bench_draw_name(enum bench_draw d);
const char *bench_kind_name(enum bench_kind k);

// What a reply was held against. It is equal when it equals each that there is.
enum bench_check {
    BENCH_CHECK_SERIAL, // the same stream undrafted
    BENCH_CHECK_ALONE,  // the same stream with nothing beside it
    BENCH_CHECK_REPEAT, // the first reply to the same request at any level
    BENCH_CHECK_COUNT,
};
const char *bench_check_name(enum bench_check c);

struct bench_digest {
    char token_sha256[SHA256_HEX_BYTES];
    char logits_hash[33]; // "" when the server gives none
};
enum bench_equality { BENCH_UNEQUAL_TOKENS, BENCH_UNEQUAL_LOGITS, BENCH_EQUAL_TOKENS, BENCH_EQUAL };
// BENCH_EQUAL_TOKENS: at least one side has no logits hash, so only tokens could be compared.
enum bench_equality bench_digest_compare(const struct bench_digest *a,
                                         const struct bench_digest *b);
bool bench_is_equal(enum bench_equality q);

struct bench_reply {
    uint32_t stream, rep;
    bool failed;
    char why[256];  // of a failed or unequal one, for people
    bool unequal;   // to one of its checks
    bool by_logits; // every check that was made compared logits too
    struct bench_digest digest;
    uint32_t prompt_tokens, cached_tokens, tokens, rounds;
    double first_token_ms; // from the request's last byte out to the first id in
    double fill_ms;        // the server's own figure; NAN when it gives none
    double tokens_per_s;   // NAN for a single round
};

// NAN where nothing was measured.
struct bench_figures {
    double first_token_ms, fill_ms, round_gap_ms;   // medians over replies, over arrivals
    double stream_tokens_per_s, total_tokens_per_s; // of one stream, of all; from the first id on
    double wall_tokens_per_s;                       // of all, fills included
    double tokens_per_round;
};

struct bench_cell {
    char name[BENCH_TEXT_BYTES];
    enum bench_kind kind;
    enum bench_class class; // not of BENCH_COLD
    enum bench_draw draw;
    uint32_t level; // streams at once; for BENCH_COLD the prompt's number
    struct bench_reply *replies;
    size_t reply_count;
    // Their sum is reply_count. First: there was nothing yet to hold it against; others are held against it.
    uint32_t equal, unequal, failed, first;
    uint32_t check_equal[BENCH_CHECK_COUNT], check_unequal[BENCH_CHECK_COUNT];
    struct bench_figures figures;
};
void bench_cell_name(struct bench_cell *c); // fills c->name from the rest

struct bench_receipt {
    char date[BENCH_TEXT_BYTES];   // UTC, ISO 8601
    char client[BENCH_TEXT_BYTES]; // build of this program
    char url[256];
    // Of the server: its build, what it serves, on what. "" when it does not say.
    char build[BENCH_TEXT_BYTES], model[256], fingerprint[BENCH_TEXT_BYTES];
    char checkpoint[2 * BENCH_TEXT_BYTES], device[2 * BENCH_TEXT_BYTES];
    char prompts_sha256[SHA256_HEX_BYTES], cold_sha256[SHA256_HEX_BYTES]; // "": none
    uint32_t tokens, reps;
    uint64_t seed;
    struct bench_cell *cells;
    size_t cell_count;
};
void bench_receipt_fini(struct bench_receipt *r);
struct bench_cell *bench_receipt_add(struct bench_receipt *r); // zeroed; moves the others
struct bench_reply *bench_cell_add(struct bench_cell *c); // zeroed but for NANs; moves the others
