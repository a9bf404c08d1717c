/* ids: see ids.h. */
#include "common/ids.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

void ids_fini(struct ids *l) {
    free(l->v);
    *l = (struct ids){0};
}

void ids_reserve(struct ids *l, size_t more) {
    size_t want = l->len + more;
    if (want <= l->cap) return;
    size_t cap = l->cap ? l->cap * 2 : 32;
    if (cap < want) cap = want;
    l->v = mem_realloc_array(l->v, cap, sizeof *l->v);
    l->cap = cap;
}

void ids_add(struct ids *l, uint32_t id) {
    ids_reserve(l, 1);
    l->v[l->len++] = id;
}

void ids_add_many(struct ids *l, const uint32_t *v, size_t count) {
    if (count == 0) return;
    ids_reserve(l, count);
    memcpy(l->v + l->len, v, count * sizeof *v);
    l->len += count;
}
