/* reply: turns the ids of one choice into text as they come: characters, stop strings, the thought and calls apart.
 *
 * Pure and deterministic: any cutting of the same ids into pushes gives the same joined text, and no text is held
 * back longer than it is part of a character, the proper prefix of a stop string or of a mark. One thread at a time.
 *
 * Text is the bytes of the ids, joined; a run of bytes that is no character becomes U+FFFD, one that the end of the
 * reply cuts is dropped. Ids not in use, and special ids when they are skipped, have no text.
 *
 * The thought (split_thought and in_thought) ends at the id of </think>, or at that of <tool_call> when the model
 * forgets the mark. Marks are ids only; text that spells one stays text. Newlines that touch
 * </think> belong to the mark: those before it are no reasoning, those behind it no content. <think> within the thought
 * and </think> within the content are dropped.
 *
 * With parse_calls, <tool_call> or the text <function= in the content begins a call (toolcall.h); white space before
 * and behind calls belongs to the marks. Without, a call is content like any other. With one_call the reply
 * is over where the first call is.
 *
 * A stop string is looked for in the visible content alone. The reply ends at the first byte at which any is complete;
 * of several that end there, the longest is the one that matched. Content behind it is not part of the reply. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/strbuf.h"

struct tokenizer;
struct reply; // defined in reply.c

enum { REPLY_STOPS_MAX = 16, REPLY_STOP_BYTES_MAX = 1024 };

struct reply_options {
    const struct tokenizer *tokenizer; // outlives the reply
    bool in_thought;                   // the prompt ends in an open thought
    bool split_thought;                // false: completions, all is content
    bool parse_calls;
    bool one_call;
    bool content_ids;    // tell which ids the content is made of
    const json_t *tools; // for parse_calls: types of arguments; outlives the reply
    bool skip_special;
    bool include_stop;        // the stop string stays in the content
    const char *const *stops; // copied; each valid UTF-8, 1 byte at least
    const size_t *stop_lens;
    size_t stop_count;
    uint32_t min_tokens; // a stop string completed by an earlier id than this many-th has no effect
};

// At most REPLY_STOPS_MAX stops of REPLY_STOP_BYTES_MAX bytes: the caller has checked.
struct reply *reply_new(const struct reply_options *o);
void reply_free(struct reply *r); // NULL is fine

enum reply_end {
    REPLY_OPEN,
    REPLY_STOP_STRING, // a stop string is complete: the caller cancels the stream
    REPLY_ONE_CALL,    // the first call is complete: the same
};

enum reply_kind { REPLY_REASONING, REPLY_CONTENT, REPLY_CALL, REPLY_ARGUMENTS };

struct reply_piece { // the next len bytes of the buffer of its kind: reasoning, content, calls
    enum reply_kind kind;
    uint32_t call; // CALL, ARGUMENTS: its index
    size_t len;
    size_t ids; // CONTENT: so many of the next content_ids have their last byte in it
};

struct reply_content_id {
    size_t idx;        // among the ids taken
    size_t char_first; // characters behind the thought before it, shown or not
};

struct reply_delta { // appended to; the caller resets
    struct strbuf reasoning, content;
    struct strbuf calls;        // names and arguments
    struct reply_piece *pieces; // in the order they were generated
    size_t piece_count, piece_cap;
    struct reply_content_id *ids; // when asked for
    size_t id_count, id_cap;
};
void reply_delta_reset(struct reply_delta *d); // keeps the memory
void reply_delta_fini(struct reply_delta *d);

// Takes ids in order until the reply is over. Returns how many were taken: those count for the reply (its
// hash, its usage); ids behind them are overshoot and not part of it.
size_t reply_push(struct reply *r, const uint32_t *ids, size_t count, struct reply_delta *out);
// Takes the stop id that ended the reply: it counts and has no text, special or not.
void reply_push_stop_id(struct reply *r, uint32_t id);
// The end of the ids: what was held back comes out, an incomplete character is dropped. cut: a limit ended them, so
// a call that stands open stays as it is; else it is closed.
void reply_finish(struct reply *r, bool cut, struct reply_delta *out);
enum reply_end reply_state(const struct reply *r);
const char *reply_stop_string(const struct reply *r,
                              size_t *ret_len); // the one that matched, or NULL
uint64_t reply_tokens(const struct reply *r);   // ids taken
uint64_t
reply_reasoning_tokens(const struct reply *r); // ids before the end-of-thought mark, mark included
uint32_t reply_calls(const struct reply *r);   // complete ones
// SHA-256 over the ids taken so far, as little-endian 32-bit words, in hex.
void reply_token_sha256(const struct reply *r, char ret_hex[65]);
