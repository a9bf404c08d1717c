/* heap: see heap.h. The pairing heap of Fredman, Sedgewick, Sleator and Tarjan (1986). */
#include "common/heap.h"

#include <stddef.h>

void heap_init(struct heap *h, heap_before *before, uint64_t *compared) {
    *h = (struct heap){.before = before, .compared = compared};
}

// Of two roots, either may be NULL.
static struct heap_node *meld(struct heap *h, struct heap_node *a, struct heap_node *b) {
    if (!a) return b;
    if (!b) return a;
    if (h->compared) ++*h->compared;
    struct heap_node *up = h->before(a, b) ? a : b, *down = up == a ? b : a;
    down->prev = up;
    down->next = up->child;
    if (up->child) up->child->prev = down;
    up->child = down;
    return up;
}

static struct heap_node *alone(struct heap_node *n) {
    n->next = n->prev = NULL;
    return n;
}

// Those beside one another become one tree: in pairs from the left, then the pairs from the right.
static struct heap_node *meld_all(struct heap *h, struct heap_node *n) {
    struct heap_node *pairs = NULL, *all = NULL; // pairs: linked by next, the last first
    while (n) {
        struct heap_node *a = n, *b = a->next;
        n = b ? b->next : NULL;
        struct heap_node *pair = meld(h, alone(a), b ? alone(b) : NULL);
        pair->next = pairs;
        pairs = pair;
    }
    while (pairs) {
        struct heap_node *pair = pairs;
        pairs = pair->next;
        all = meld(h, alone(pair), all);
    }
    return all;
}

void heap_add(struct heap *h, struct heap_node *n) {
    *n = (struct heap_node){0};
    h->root = meld(h, h->root, n);
}

static void cut(struct heap_node *n) {
    if (n->prev->child == n)
        n->prev->child = n->next;
    else
        n->prev->next = n->next;
    if (n->next) n->next->prev = n->prev;
}

void heap_remove(struct heap *h, struct heap_node *n) {
    struct heap_node *below = meld_all(h, n->child);
    if (n == h->root) {
        h->root = below;
    } else {
        cut(n);
        h->root = meld(h, h->root, below);
    }
}

void heap_moved(struct heap *h, struct heap_node *n) {
    heap_remove(h, n);
    heap_add(h, n);
}
