/* stream: one request in flight: its ids, how far its rows have been fed, and what each row of logits does to it.
 *
 * ids holds prompt, given and drawn ids in one row. rows of them have been fed, so state and cache hold rows 0..rows-1.
 * The row at position p gives the logits from which the id at p + 1 is drawn (or was: a given id). A stream that decodes
 * has exactly one id that was not fed. Memory is taken at submit, in one arena; nothing later allocates.
 *
 * Engine thread, but for stream_row: different streams on different threads. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/arena.h"
#include "kernels/sample/draw.h"
#include "worker/engine/engine.h"

struct stream_vocab { // the engine's
    uint32_t size;
    const uint32_t *used_bits;
    const uint32_t *stop_ids;
    uint32_t stop_count;
};

struct stream {
    bool live;
    uint64_t handle, tag;
    uint32_t slot;
    uint32_t *ids; // [total]
    uint32_t prompt_count, given_count, count, total;
    uint32_t rows;    // fed and committed
    uint32_t cached;  // rows that came from a saved state
    uint32_t emitted; // generated ids told of, or given
    uint32_t min_tokens;
    struct sample_params sampling; // bias lists in the arena
    uint32_t *stops;               // all ids that end the reply
    uint32_t stops_count;
    bool logits_hash;
    bool in_thought;               // and bounded: the next id may be the one that closes it
    struct engine_thought thought; // stands while in_thought
    int32_t top_logprobs;
    uint64_t hash;
    enum engine_finish finish;
    int64_t stop_id;
    uint32_t *pages;
    uint32_t pages_count;
    uint64_t submit_us, start_us, first_us,
        rounds; // start: of its first round; first: its first draw
    struct arena arena;
    // Of the slot, kept from stream to stream (all zero between them): [vocab] each.
    uint8_t *prompt_seen;
    uint32_t *generated;
    float *logprobs;            // [ENGINE_WINDOW_ROWS_MAX] of the ids drawn since the last event
    struct sample_logprob *top; // [.., top_logprobs]; rooms of ENGINE_TOP_LOGPROBS_MAX
};

// ST_INVAL names the field, what was wanted and what was found.
int stream_check(const struct engine_request *r, const struct stream_vocab *v, uint32_t context_max,
                 struct err *e);
// Copies a checked request into an idle stream. Pages and handle are the caller's to set.
int stream_open(struct stream *s, const struct engine_request *r, const struct stream_vocab *v,
                uint32_t context_max, struct err *e);
// Ends it: the counts are wiped; ids stay readable until stream_open or stream_wipe.
void stream_close(struct stream *s);
void stream_wipe(struct stream *s); // gives the memory of a closed stream back
// ids that would be in the cache of the longest run of this request
uint32_t stream_total(const struct engine_request *r, uint32_t context_max);

uint32_t stream_pending(const struct stream *s); // rows that could be fed now
bool stream_decoding(const struct stream *s);    // past its prompt and given ids
bool stream_wants_logits(const struct stream *s, uint32_t pos);
bool stream_done(const struct stream *s); // has its last id, and nothing more to feed
// Whether the row at pos, fed with id, is one of the stream's: rows of a window are until the first that was fed with
// another id than was drawn for it, and until the reply's end.
bool stream_stands(const struct stream *s, uint32_t pos, uint32_t id);
// Takes the logits of the row at pos: into the hash, and into a draw if the next id is not known.
void stream_row(struct stream *s, const struct stream_vocab *v, uint32_t pos, const float *logits,
                struct sample *sampler);
// Its draws need no filter, change no logit and tell nothing of it: the device can make them (kernels/sample/draw.h).
bool stream_plain(const struct stream *s);
// How many of a row's best ids its draws are made of, where they look at nothing else and the device can find as many; 0.
uint32_t stream_best(const struct stream *s);
// What the device needs to draw behind the row at pos, and what becomes of the id.
struct draw_row stream_draw_row(const struct stream *s, uint32_t pos);
void stream_drawn(struct stream *s, uint32_t pos, uint32_t id);
void stream_broken(struct stream *s, uint32_t pos); // there was nothing to draw from
// Appends an id as if it had been drawn.
void stream_append(struct stream *s, uint32_t id);
bool stream_ends_at(const struct stream *s, uint32_t generated_idx, uint32_t id); // by a stop id
