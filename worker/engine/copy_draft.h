/* copy_draft: drafts that are what followed an earlier occurrence of a stream's last ids in the stream itself.
 *
 * An index of every four neighbouring ids leads to where they stood before; the longest match wins, the newest of equals. A long
 * match replaces a block drafter's block; a shorter one goes beside it as a branch from the same id.
 * Host only, state per stream, memory taken once. What it proposes depends on the stream's ids and on how its own copies
 * fared, nothing else. Engine thread only. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct arena;

enum {
    COPY_GRAM = 4, // ids that must match for a place to be looked at
    COPY_MATCH_LEAST =
        8, // equal ids that make a copy where drafts cost little or there are no others
    COPY_MATCH_BLOCK =
        20,              // ... that replace a block drafter's; from the least on they make a branch
    COPY_BRANCH_MAX = 4, // ids of a branch
    COPY_MATCH_MAX = 64, // counted no further
    COPY_CHAIN_MAX = 256, // places looked at
    COPY_MISSES_MAX = 4,  // copies in a row of which nothing was kept, then
    COPY_SILENCE = 16,    // rounds without copies
};

struct copy_draft {
    uint32_t *head;     // [1 << head_bits] latest end of four ids with this hash, 0: none
    uint32_t *prev;     // [ids_max + 1] the end before that
    uint32_t head_bits; // log2
    uint32_t known;     // ends below are in the index
    uint32_t level;     // of the width
    uint32_t misses;    // in a row
    uint32_t silent;    // rounds to come
    uint32_t branch_misses, branch_silent;
    bool branch_quiet;   // in this round
    uint32_t last_match; // equal ids behind the last proposal, 0: there was no match
};

// For a stream of up to ids_max ids; the memory is the arena's.
void copy_draft_init(struct copy_draft *c, struct arena *a, uint32_t ids_max);
// One round: ids is all the stream has, the last being the one no row was fed with. A match of at least match_least makes
// up to want ids; returns how many. A round of silence gives none.
uint32_t copy_draft_propose(struct copy_draft *c, const uint32_t *ids, uint32_t count,
                            uint32_t match_least, uint32_t want, uint32_t *ret);
// What became of the last proposal, if there was one.
void copy_draft_result(struct copy_draft *c, uint32_t drafted, uint32_t kept);
// ... as a branch. It is too short to say anything of the width, and as many misses of branches make silence of branches alone: they
// are found where less matches.
void copy_draft_branch_result(struct copy_draft *c, uint32_t drafted, uint32_t kept);
