/* runner: the engine thread: loads the model, then runs rounds while there is work and sleeps while there is none.
 *
 * The link thread hands it requests and takes what it made: encoded frames, each of the session they belong to. A
 * session is one incarnation at the router; when it ends, its streams are cancelled and its frames are of no use, and the
 * engine stays as it is. Every function here is for the link thread and never waits for a round. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/strbuf.h"
#include "proto/frame.h"

struct engine_config;
struct engine_info;
struct err;
struct runner; // defined in runner.c

enum { RUNNER_OUT_BYTES_MAX = 16 << 20 }; // made and not yet taken; over it the engine waits

enum runner_state { RUNNER_LOADING, RUNNER_LOADED, RUNNER_FAILED };

struct runner_status { // a snapshot
    enum runner_state state;
    int st;           // of RUNNER_FAILED
    char reason[512]; // of RUNNER_FAILED
    double load_fraction;
    bool ready;       // loaded, and the vocabulary is known
    uint64_t changes; // grows when something a router should know at once has changed
    uint64_t progress, rounds, tokens, prompt_tokens;
    uint32_t streams_running; // admitted, or handed over and not yet looked at
    uint32_t streams_max, room, context_max, vocab_size;
    uint32_t kv_blocks_used, kv_blocks_total, kv_block_tokens;
    double fill_tokens_per_s, round_ms;
};

// Starts the thread, which copies what config points to first thing: config lives until runner_free.
struct runner *runner_new(const struct engine_config *config);
// Ends the thread at its next round and frees the engine. Not while it loads.
void runner_free(struct runner *r);    // NULL is fine
int runner_fd(const struct runner *r); // readable: something changed, or was made
void runner_status(struct runner *r, struct runner_status *ret); // clears runner_fd first
const struct engine_info *runner_info(struct runner *r); // constant parts; NULL before it is loaded

// A new incarnation: cancels what runs; from now on frames are made for this generation.
void runner_begin_session(struct runner *r, uint32_t generation);
void runner_set_vocab(struct runner *r, const struct frame_vocab *v);
void runner_submit(struct runner *r, const struct frame_submit *s); // answered by frames
void runner_cancel(struct runner *r, const struct frame_cancel *c);
// Moves the encoded frames of the present session to the end of ret's list: see runner_next_frame.
void runner_take(struct runner *r, struct strbuf *ret);
// Splits what runner_take gave: *at begins at 0. False: no more.
bool runner_next_frame(const struct strbuf *frames, size_t *at, const void **ret, size_t *ret_len);
