/* copy_draft: see copy_draft.h. */
#include "worker/engine/copy_draft.h"
#include "common/arena.h"
#include "common/num.h"

#include <string.h>

enum { HEAD_BITS_MAX = 16 };
static const uint32_t widths[] = {15, 31, 63}; // by level

void copy_draft_init(struct copy_draft *c, struct arena *a, uint32_t ids_max) {
    *c = (struct copy_draft){.head_bits = 4, .known = COPY_GRAM};
    while (c->head_bits < HEAD_BITS_MAX && 1u << c->head_bits < ids_max) c->head_bits++;
    c->head = arena_calloc(a, (size_t)1 << c->head_bits, sizeof *c->head);
    c->prev = arena_calloc(a, (size_t)ids_max + 1, sizeof *c->prev);
}

// Of the four ids that end at `end`.
static uint32_t *head_of(const struct copy_draft *c, const uint32_t *ids, uint32_t end) {
    uint64_t a = (uint64_t)ids[end - 4] << 32 | ids[end - 3];
    uint64_t b = (uint64_t)ids[end - 2] << 32 | ids[end - 1];
    return &c->head[mix_u64(mix_u64(a) ^ b) >> (64 - c->head_bits)];
}

// An end goes in when the id behind it is known, so that no match is the end itself.
static void learn(struct copy_draft *c, const uint32_t *ids, uint32_t count) {
    for (; c->known < count; c->known++) {
        uint32_t *head = head_of(c, ids, c->known);
        c->prev[c->known] = *head;
        *head = c->known;
    }
}

static uint32_t equal_before(const uint32_t *ids, uint32_t end, uint32_t count) {
    uint32_t n = 0, max = min_u32(end, COPY_MATCH_MAX);
    while (n < max && ids[end - 1 - n] == ids[count - 1 - n]) n++;
    return n;
}

// The end of the longest match, its length in c->last_match.
static uint32_t find(struct copy_draft *c, const uint32_t *ids, uint32_t count) {
    uint32_t best = 0, looked = 0;
    c->last_match = 0;
    for (uint32_t end = *head_of(c, ids, count); end && looked < COPY_CHAIN_MAX;
         end = c->prev[end], looked++) {
        uint32_t n = equal_before(ids, end, count);
        if (n < COPY_GRAM || n <= c->last_match) continue; // another hash's, or no longer
        c->last_match = n;
        best = end;
    }
    return best;
}

uint32_t copy_draft_propose(struct copy_draft *c, const uint32_t *ids, uint32_t count,
                            uint32_t match_least, uint32_t want, uint32_t *ret) {
    c->last_match = 0;
    learn(c, ids, count);
    c->branch_quiet = c->branch_silent > 0;
    if (c->branch_quiet) c->branch_silent--;
    if (c->silent) {
        c->silent--;
        return 0;
    }
    if (count < COPY_GRAM) return 0;
    uint32_t end = find(c, ids, count), n = min_u32(want, widths[c->level]);
    if (c->last_match < match_least) return 0;
    // What is copied may reach into the copy itself: text that repeats goes on repeating.
    for (uint32_t i = 0; i < n; i++)
        ret[i] = end + i < count ? ids[end + i] : ret[i - (count - end)];
    return n;
}

static void count_miss(uint32_t *misses, uint32_t *silent, uint32_t kept) {
    *misses = kept ? 0 : *misses + 1;
    if (*misses < COPY_MISSES_MAX) return;
    *misses = 0;
    *silent = COPY_SILENCE;
}

void copy_draft_result(struct copy_draft *c, uint32_t drafted, uint32_t kept) {
    if (!drafted) return;
    c->level = kept < drafted ? 0 : min_u32(c->level + 1, sizeof widths / sizeof *widths - 1);
    count_miss(&c->misses, &c->silent, kept);
}

void copy_draft_branch_result(struct copy_draft *c, uint32_t drafted, uint32_t kept) {
    if (drafted) count_miss(&c->branch_misses, &c->branch_silent, kept);
}
