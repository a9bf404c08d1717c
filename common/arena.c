/* arena: see arena.h. Chunks double in size, so their number grows with the logarithm of the use. */
#include "common/arena.h"
#include "common/mem.h"
#include "common/num.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 16, ARENA_FIRST_BYTES = 4096 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t cap, used;
    _Alignas(16) char data[];
};

void arena_fini(struct arena *a) {
    for (struct arena_chunk *c = a->chunk, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    *a = (struct arena){0};
}

// Keeps the largest chunk only, so one big use does not pin a chain of small ones.
void arena_reset(struct arena *a) {
    struct arena_chunk *keep = NULL;
    for (struct arena_chunk *c = a->chunk; c; c = c->next)
        if (!keep || c->cap > keep->cap) keep = c;
    for (struct arena_chunk *c = a->chunk, *next; c; c = next) {
        next = c->next;
        if (c != keep) free(c);
    }
    if (keep) *keep = (struct arena_chunk){.cap = keep->cap};
    *a = (struct arena){.chunk = keep};
}

void *arena_alloc(struct arena *a, size_t bytes) {
    size_t need = align_up_size(bytes ? bytes : 1, ARENA_ALIGN);
    assert(need >= bytes);
    struct arena_chunk *c = a->chunk;
    if (!c || c->cap - c->used < need) {
        size_t cap = max_size(c ? c->cap * 2 : ARENA_FIRST_BYTES, need);
        struct arena_chunk *grown = mem_alloc(sizeof *grown + cap);
        *grown = (struct arena_chunk){.next = c, .cap = cap};
        a->chunk = c = grown;
    }
    void *p = c->data + c->used;
    c->used += need;
    a->used_bytes += need;
    return p;
}

void *arena_calloc(struct arena *a, size_t count, size_t bytes) {
    size_t total = 0;
    bool fits = mul_size(&total, count, bytes);
    assert(fits);
    return memset(arena_alloc(a, total), 0, total);
}

void *arena_copy(struct arena *a, const void *p, size_t bytes) {
    void *q = arena_alloc(a, bytes);
    if (bytes) memcpy(q, p, bytes);
    return q;
}

char *arena_strndup(struct arena *a, const char *s, size_t len) {
    char *p = arena_alloc(a, len + 1);
    if (len) memcpy(p, s, len);
    p[len] = '\0';
    return p;
}

char *arena_strdup(struct arena *a, const char *s) {
    return arena_strndup(a, s, strlen(s));
}
