/* ids: a growable list of token ids. Zero-initialised is empty and valid. Not for several threads at once. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct ids {
    uint32_t *v;
    size_t len; // ids in use
    size_t cap;
};

void ids_fini(struct ids *l);
void ids_reserve(struct ids *l, size_t more);
void ids_add(struct ids *l, uint32_t id);
void ids_add_many(struct ids *l, const uint32_t *v, size_t count);
