/* heap: which of many comes first: a pairing heap whose nodes are embedded in what is ordered, so nothing is allocated.
 *
 * The first is there at once; adding costs one comparison; taking any node out costs O(log n) of them, amortised. The order
 * must be total: of two nodes exactly one comes before the other. A node whose key changes is told of by heap_moved before
 * anything else is asked. Pure; one thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct heap_node {
    struct heap_node *child, *next; // the first of those below; the next beside it
    struct heap_node
        *prev; // the one beside before it, of the first the one above; of the root NULL
};

typedef bool heap_before(const struct heap_node *a, const struct heap_node *b);

struct heap {
    struct heap_node *root;
    heap_before *before;
    uint64_t *compared; // counts the comparisons; NULL: nobody asks
};

void heap_init(struct heap *h, heap_before *before, uint64_t *compared);
void heap_add(struct heap *h, struct heap_node *n);
void heap_remove(struct heap *h, struct heap_node *n); // n is in h
void heap_moved(struct heap *h, struct heap_node *n);  // n is in h, and its key is another now

static inline struct heap_node *heap_first(const struct heap *h) { // NULL: empty
    return h->root;
}
