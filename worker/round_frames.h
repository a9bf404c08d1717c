/* round_frames: requests of the router to the engine, and what a round made back to frames. Engine thread only.
 *
 * Frames are encoded into `out`, each behind its length (u32, this host's order), of the generation set by the owner. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/strbuf.h"
#include "proto/frame.h"

struct engine;
struct err;
struct round_stream; // defined in round_frames.c

struct round_frames {
    struct engine *eng;
    uint32_t generation;
    struct round_stream *streams; // by slot, which is the engine's tag
    uint32_t slots, count;
    bool has_vocab;                 // then:
    int64_t think_close, tool_open; // -1: none
    bool full;                      // the last request did not fit; none will before a stream ends
    uint64_t progress;              // ids and filled rows
    uint64_t rounds, tokens, prompt_tokens;
    double fill_tokens_per_s, round_ms; // smoothed
    struct strbuf out, bytes;           // bytes: scratch
    struct arena arena;                 // of the frame being made or read
};

void round_frames_init(struct round_frames *f, struct engine *eng);
void round_frames_fini(struct round_frames *f); // zero-initialised is fine
int round_frames_vocab(struct round_frames *f, const struct frame_vocab *v, struct err *e);
// What the engine refuses is answered FAIL.
void round_frames_submit(struct round_frames *f, const struct frame_submit *s);
// Each stream that still runs is answered DONE(cancelled).
void round_frames_cancel(struct round_frames *f, const struct frame_cancel *c);
void round_frames_drop_all(
    struct round_frames *f); // without an answer; what was made is thrown away too
// One round: TOKENS, then DONE for each stream that ended. *changed is set when one did.
int round_frames_step(struct round_frames *f, bool *changed, struct err *e);
