/* body: a request's bytes into a JSON object, strictly (RFC 8259, UTF-8), with the place of every mistake.
 *
 * A scan of our own goes first: it skips a BOM, finds bad UTF-8, wrong syntax, nesting over BODY_DEPTH_MAX and
 * numbers no double holds, more of anything than a request can mean, each with its byte offset; escaped lone surrogates become U+FFFD; whole numbers beyond
 * int64 keep their digits (router/text/bigint.h). Only then jansson builds the tree. Any thread. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct apierr;

enum {
    BODY_DEPTH_MAX = 64,
    // An empty object of three bytes is one of 300 in the tree: 32 MiB of them took 2.3 GB. These bound a tree at some 200 MB.
    BODY_CONTAINERS_MAX = 1 << 17, // objects and arrays: 13 for each of 10,000 messages
    BODY_KEYS_MAX = 1 << 18,
    BODY_VALUES_MAX = 9 << 18, // of all kinds: the ids of eight prompts of 262,144, and all else
};

struct body_stats {
    uint32_t lone_surrogates;
    uint32_t containers, keys, values;
};

// *ret is an object; the caller gives it back with json_decref. Refusals: APIERR_INVALID_UTF8, APIERR_INVALID_JSON.
int body_parse(const char *bytes, size_t len, json_t **ret, struct body_stats *ret_stats,
               struct apierr *e);

// The same for one of several texts that are bounded together: *stats goes on from those before.
int body_parse_next(const char *bytes, size_t len, json_t **ret, struct body_stats *stats,
                    struct apierr *e);

// Ask these before treating a string as text: a whole number beyond int64 is a string in the tree.
bool body_is_text(const json_t *v);          // a string that the client wrote as one
const char *body_type_name(const json_t *v); // "a string", "an integer", ... for messages
