/* frame_layout: which fields a frame has, in order, with their kinds and ranges. One table drives encoding and
 * decoding, so the two cannot drift apart. Internal to proto/. Constant, any thread. */
#pragma once
#include "proto/frame.h"

enum frame_kind {
    FRAME_KIND_U32,    // -> uint32_t (and enums)
    FRAME_KIND_U64,    // -> uint64_t
    FRAME_KIND_I32,    // -> int32_t
    FRAME_KIND_I64,    // -> int64_t
    FRAME_KIND_BOOL,   // -> bool
    FRAME_KIND_REAL,   // -> double, finite
    FRAME_KIND_F32,    // -> float, finite
    FRAME_KIND_TEXT,   // -> const char *, UTF-8 without NUL
    FRAME_KIND_IDS,    // -> struct frame_ids; bin of little-endian words
    FRAME_KIND_WORDS,  // -> const uint32_t * and a count; bin of little-endian words
    FRAME_KIND_FLOATS, // -> const float *, as many as a count read before; bin of little-endian fp32
    FRAME_KIND_COUNTS, // -> uint64_t[max]; array
    FRAME_KIND_GROUP,  // -> a struct inside; array of its fields
    FRAME_KIND_LIST,   // -> const struct * and a count; array of groups
    FRAME_KIND_PER_ID, // -> const struct * or NULL, as many as a count read before; array of groups, or nil
};

struct frame_group;
struct frame_field {
    const char *name;
    enum frame_kind kind;
    uint32_t offset;       // in the struct that the group fills
    uint32_t count_offset; // of the uint32_t count of WORDS, FLOATS, LIST and PER_ID
    int64_t min;           // numbers; of the length for TEXT, IDS, WORDS and LIST
    uint64_t max;
    const struct frame_group *group; // of GROUP, LIST and PER_ID
};

struct frame_group {
    const struct frame_field *fields;
    uint32_t count;
    uint32_t bytes; // of the struct
    uint32_t
        later; // of the last fields: added within the version, 0 where an older peer leaves them out
};

// The fields behind [type, generation]; NULL for a type we do not know. Offsets count from the union in struct frame.
const struct frame_group *frame_layout(uint64_t type);
