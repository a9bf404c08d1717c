/* draft_doubles: drafters for tests of the engine, which know the replies in advance: they agree with them, lie, or do both.
 *
 * They hold the engine to its side of drafter.h: rows come in order, each once, and nothing before it was committed. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "tests/lib/engine_drive.h"
#include "worker/engine/drafter.h"

enum double_kind {
    DOUBLE_AGREES, // all that it is asked for, all right
    DOUBLE_LIES,   // all wrong
    DOUBLE_HALF,   // half of them right
    DOUBLE_SHORT,  // half as many as asked for, the last wrong
    DOUBLE_RANDOM, // each right three times in four
    DOUBLE_KINDS
};

enum { DOUBLE_SLOTS_MAX = 16, DOUBLE_IDS_MAX = 1024, DOUBLE_KNOWN_MAX = 16, DOUBLE_BLOCK = 15 };

struct draft_double {
    enum double_kind kind;
    uint32_t vocab;
    struct {
        uint32_t ids[DOUBLE_IDS_MAX]; // prompt and reply
        uint32_t count;
    } known[DOUBLE_KNOWN_MAX];
    uint32_t known_count;
    struct {
        uint32_t ids[DOUBLE_IDS_MAX]; // of the rows it was told of
        uint32_t rows;
    } slots[DOUBLE_SLOTS_MAX];
    uint32_t asked, saved, restored; // blocks, states
    uint64_t room_bytes;             // that it takes of the arena; 0: little
    bool loaded, closed;
};

const char *double_name(enum double_kind kind);
// The drafter is the double's for as long as the engine has it.
struct drafter double_drafter(struct draft_double *d, enum double_kind kind, uint32_t vocab);
// What it is to know: the request and the reply to it.
void double_learn(struct draft_double *d, const struct engine_request *r, const struct reply *got);
// A file of costs for this model on this machine, with rows and drafts at next to no cost: every draft pays, so that none is held
// back. The caller unlinks it.
const char *double_free_costs(const char *dir);
