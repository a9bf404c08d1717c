/* bpe: see bpe.h. */
#include "router/text/bpe.h"
#include "common/ids.h"
#include "common/mem.h"
#include "common/num.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    NO_RANK = UINT32_MAX,
    SHORT_MAX = 48, // up to so many bytes a scan for the best pair beats a heap
};

struct merge { // pair: left id in the high half
    uint64_t pair;
    uint32_t rank, merged; // rank NO_RANK: an empty slot
};
struct bpe {
    uint32_t byte_ids[256];
    struct merge *table; // open addressing, at most half full
    size_t mask;
};

struct symbol { // of a long piece; ends of the list are -1
    uint32_t id;
    int32_t prev, next; // next -2: merged away
};
struct candidate {
    uint32_t rank;
    int32_t at;
    uint64_t pair; // stale when the symbols there have changed
};
struct bpe_work {
    struct symbol *symbols;
    struct candidate *heap;
    size_t symbols_cap, heap_len, heap_cap;
};

static uint64_t pair_of(uint32_t left, uint32_t right) {
    return (uint64_t)left << 32 | right;
}

struct bpe *bpe_new(const uint32_t byte_ids[256], size_t merge_count) {
    struct bpe *b = mem_calloc(1, sizeof *b);
    memcpy(b->byte_ids, byte_ids, sizeof b->byte_ids);
    size_t slots = 16;
    while (slots < merge_count * 2) slots *= 2;
    b->mask = slots - 1;
    b->table = mem_alloc(slots * sizeof *b->table);
    for (size_t i = 0; i < slots; i++) b->table[i].rank = NO_RANK;
    return b;
}

void bpe_free(struct bpe *b) {
    if (!b) return;
    free(b->table);
    free(b);
}

// The pair's slot, or the empty one where it would go.
static struct merge *slot_of(const struct bpe *b, uint64_t pair) {
    size_t i = mix_u64(pair) & b->mask;
    while (b->table[i].rank != NO_RANK && b->table[i].pair != pair) i = (i + 1) & b->mask;
    return &b->table[i];
}

void bpe_put(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged) {
    struct merge *m = slot_of(b, pair_of(left, right));
    *m = (struct merge){pair_of(left, right), rank, merged};
}

struct bpe_work *bpe_work_new(void) {
    return mem_calloc(1, sizeof(struct bpe_work));
}

void bpe_work_free(struct bpe_work *w) {
    if (!w) return;
    free(w->symbols);
    free(w->heap);
    free(w);
}

static void encode_short(const struct bpe *b, const uint8_t *piece, size_t len, struct ids *out) {
    uint32_t id[SHORT_MAX];
    const struct merge *m[SHORT_MAX]; // of the symbol and its right neighbour
    size_t n = len;
    for (size_t i = 0; i < n; i++) id[i] = b->byte_ids[piece[i]];
    for (size_t i = 0; i + 1 < n; i++) m[i] = slot_of(b, pair_of(id[i], id[i + 1]));
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (m[i]->rank < m[best]->rank) best = i;
        if (m[best]->rank == NO_RANK) break;
        id[best] = m[best]->merged;
        n--;
        memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof *id);
        memmove(m + best, m + best + 1, (n - best - 1) * sizeof *m);
        if (best > 0) m[best - 1] = slot_of(b, pair_of(id[best - 1], id[best]));
        if (best + 1 < n) m[best] = slot_of(b, pair_of(id[best], id[best + 1]));
    }
    ids_add_many(out, id, n);
}

static bool before(const struct candidate *a, const struct candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct bpe_work *w, struct candidate c) {
    if (w->heap_len == w->heap_cap) {
        w->heap_cap = w->heap_cap ? w->heap_cap * 2 : 256;
        w->heap = mem_realloc_array(w->heap, w->heap_cap, sizeof *w->heap);
    }
    size_t i = w->heap_len++;
    for (; i > 0 && before(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

static struct candidate heap_pop(struct bpe_work *w) {
    struct candidate top = w->heap[0], last = w->heap[--w->heap_len];
    size_t i = 0, n = w->heap_len;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&w->heap[child + 1], &w->heap[child])) child++;
        if (!before(&w->heap[child], &last)) break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

static uint64_t pair_at(const struct bpe_work *w, int32_t at) {
    const struct symbol *s = &w->symbols[at];
    return pair_of(s->id, w->symbols[s->next].id);
}

static void offer(const struct bpe *b, struct bpe_work *w, int32_t at) {
    if (w->symbols[at].next < 0) return;
    uint64_t pair = pair_at(w, at);
    uint32_t rank = slot_of(b, pair)->rank;
    if (rank != NO_RANK) heap_push(w, (struct candidate){rank, at, pair});
}

static void fill(const struct bpe *b, struct bpe_work *w, const uint8_t *piece, size_t len) {
    if (len > w->symbols_cap) {
        w->symbols = mem_realloc_array(w->symbols, len, sizeof *w->symbols);
        w->symbols_cap = len;
    }
    for (size_t i = 0; i < len; i++)
        w->symbols[i] = (struct symbol){b->byte_ids[piece[i]], (int32_t)i - 1,
                                        i + 1 < len ? (int32_t)i + 1 : -1};
    w->heap_len = 0;
    for (size_t i = 0; i < len; i++) offer(b, w, (int32_t)i);
}

static void join(const struct bpe *b, struct bpe_work *w, struct candidate c) {
    struct symbol *s = &w->symbols[c.at], *gone = &w->symbols[s->next];
    s->id = slot_of(b, c.pair)->merged;
    s->next = gone->next;
    gone->next = -2;
    if (s->next >= 0) w->symbols[s->next].prev = c.at;
    if (s->prev >= 0) offer(b, w, s->prev);
    offer(b, w, c.at);
}

static void encode_long(const struct bpe *b, const uint8_t *piece, size_t len, struct bpe_work *w,
                        struct ids *out) {
    fill(b, w, piece, len);
    while (w->heap_len) {
        struct candidate c = heap_pop(w);
        // The pair of a place can come back only as the same bytes, so an equal pair is the same one.
        if (w->symbols[c.at].next >= 0 && pair_at(w, c.at) == c.pair) join(b, w, c);
    }
    for (int32_t at = 0; at >= 0; at = w->symbols[at].next) ids_add(out, w->symbols[at].id);
}

void bpe_encode(const struct bpe *b, const char *piece, size_t len, struct bpe_work *w,
                struct ids *out) {
    assert(len < INT32_MAX);
    if (len == 0) return;
    if (len <= SHORT_MAX)
        encode_short(b, (const uint8_t *)piece, len, out);
    else
        encode_long(b, (const uint8_t *)piece, len, w, out);
}
