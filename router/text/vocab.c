/* vocab: see vocab.h. */
#include "router/text/vocab.h"
#include "common/mem.h"
#include "common/strbuf.h"

#include <assert.h>
#include <stdlib.h>

struct entry {
    uint32_t first, len; // in bytes
    uint8_t flags;
};
struct vocab {
    struct entry *v;
    uint32_t size, count;
    struct strbuf bytes;
};

struct vocab *vocab_new(uint32_t size) {
    struct vocab *v = mem_calloc(1, sizeof *v);
    v->v = mem_calloc(size, sizeof *v->v);
    v->size = size;
    return v;
}

void vocab_free(struct vocab *v) {
    if (!v) return;
    free(v->v);
    strbuf_fini(&v->bytes);
    free(v);
}

bool vocab_put(struct vocab *v, uint32_t id, const char *bytes, size_t len, unsigned flags) {
    assert(id < v->size && v->bytes.len + len <= UINT32_MAX);
    if (v->v[id].flags) return false;
    v->v[id] = (struct entry){(uint32_t)v->bytes.len, (uint32_t)len, (uint8_t)(VOCAB_USED | flags)};
    strbuf_add(&v->bytes, bytes, len);
    v->count++;
    return true;
}

void vocab_mark(struct vocab *v, uint32_t id, unsigned flags) {
    assert(vocab_flags(v, id));
    v->v[id].flags |= (uint8_t)flags;
}

uint32_t vocab_size(const struct vocab *v) {
    return v->size;
}

uint32_t vocab_count(const struct vocab *v) {
    return v->count;
}

unsigned vocab_flags(const struct vocab *v, uint32_t id) {
    return id < v->size ? v->v[id].flags : 0;
}

const char *vocab_bytes(const struct vocab *v, uint32_t id, size_t *ret_len) {
    if (!vocab_flags(v, id)) return NULL;
    *ret_len = v->v[id].len;
    return v->bytes.p + v->v[id].first;
}
