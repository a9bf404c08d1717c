/* h2heads: the heads of an HTTP/2 connection as their bytes come in, ahead of h2o, which unpacks 400 KB of head into as many
 * fields as it has bytes, 40 MB, and keeps them as long as the request's body is coming: of a hundred streams at once. Here the
 * fields and bytes of each head (and of trailers) are counted, packed as they are (RFC 7541, 6), and far beyond the limits
 * the connection ends: what it has unpacked could not be kept in step without the whole of it. A head that is over them by
 * less is answered like any other.
 *
 * Pure. One for each connection, fed with every byte of it; zeroed is the state of a new one. What is no HTTP/2 is h2o's to refuse. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_limits;

enum {
    H2HEADS_FACTOR = 4, // of a request's limits, where it ends
    H2HEADS_FRAME_BYTES = 9,
    H2HEADS_PREFACE_BYTES = 24,
};

enum h2heads_part {
    H2HEADS_PREFACE, // zero
    H2HEADS_FRAME,   // its own head
    H2HEADS_PADDING, // the count of it
    H2HEADS_PRIORITY,
    H2HEADS_BLOCK, // of fields
    H2HEADS_REST,  // of the frame: no concern of ours
};

enum h2heads_field {
    H2HEADS_FIRST,  // byte of a field
    H2HEADS_INDEX,  // more of a number
    H2HEADS_LENGTH, // first byte of a string's
    H2HEADS_LENGTH_MORE,
    H2HEADS_TEXT,
};

struct h2heads {
    enum h2heads_part part;
    uint32_t seen; // bytes of the part
    uint8_t frame[H2HEADS_FRAME_BYTES];
    uint32_t left; // of the frame's payload
    uint32_t padding;
    bool open; // a head has begun, and CONTINUATION must follow
    uint32_t fields;
    uint64_t bytes; // of this head, packed
    enum h2heads_field field;
    uint32_t strings; // of the field, still to come
    uint64_t text;    // bytes of a string, still to come
    uint32_t shift;
};

// ST_INVAL: a head is far beyond the limits, and no byte more may be handed on.
int h2heads_take(struct h2heads *h, const void *in, size_t len, const struct http_limits *limits);
