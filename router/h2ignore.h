/* h2ignore: of an HTTP/2 connection, the streams that were answered before their body had come: what still comes of it is
 * taken out of the input before h2o sees it. To h2o such a stream is closed, and it would reset it for each frame, which
 * makes many clients forget the answer they have.
 *
 * What was taken counts in the client's windows: the owner gives it back, and resets the stream past
 * H2IGNORE_BYTES_MAX, as RFC 9113 (8.1) has it: without an error. Pure. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    H2IGNORE_STREAMS_MAX = 128,    // more than may be open; past it the oldest are forgotten
    H2IGNORE_BYTES_MAX = 32 << 20, // of one stream's body
    H2IGNORE_FRAME_MAX = 16 << 10, // the largest payload; h2o refuses a larger one
};

struct h2ignore_stream {
    uint32_t id;
    uint32_t taken; // bytes since the owner looked last
    uint64_t total;
};

struct h2ignore { // zero-initialised: none
    struct h2ignore_stream streams[H2IGNORE_STREAMS_MAX];
    uint32_t count;
};

void h2ignore_add(struct h2ignore *g, uint32_t stream_id);
// in: frames, from the beginning of one; the last may be cut off. Whole DATA frames of the streams are cut out, and a stream
// whose last frame or reset is seen is forgotten. Returns the bytes that are left; *ret_taken: of payload that went.
size_t h2ignore_take(struct h2ignore *g, void *in, size_t len, size_t *ret_taken);
// The next stream of which something was taken, which then counts as told. False: there is none.
// *ret_reset: it has had its share, now, for the first time.
bool h2ignore_next(struct h2ignore *g, uint32_t *ret_id, uint32_t *ret_taken, bool *ret_reset);
