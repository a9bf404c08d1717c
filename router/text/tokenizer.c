/* tokenizer: see tokenizer.h. The parts: vocab (ids to bytes), added (control tokens in text), nfc, pretoken (the
 * regex), bpe (the merges); tokenizer_file reads them. */
#include "router/text/tokenizer.h"
#include "common/err.h"
#include "common/ids.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "router/text/added.h"
#include "router/text/bpe.h"
#include "router/text/nfc.h"
#include "router/text/pretoken.h"
#include "router/text/tokenizer_file.h"
#include "router/text/utf8.h"
#include "router/text/vocab.h"

#include <stdlib.h>
#include <string.h>

struct tokenizer {
    struct tokenizer_parts parts;
};

int tokenizer_open(struct tokenizer **ret, const char *path, struct err *e) {
    struct tokenizer_parts parts = {0};
    int st = tokenizer_file_read(path, &parts, e);
    if (st) return st;
    *ret = mem_alloc(sizeof **ret);
    (*ret)->parts = parts;
    return ST_OK;
}

int tokenizer_parse(struct tokenizer **ret, const char *name, const char *text, size_t len,
                    struct err *e) {
    struct tokenizer_parts parts = {0};
    int st = tokenizer_file_parse(name, text, len, &parts, e);
    if (st) return st;
    *ret = mem_alloc(sizeof **ret);
    (*ret)->parts = parts;
    return ST_OK;
}

void tokenizer_free(struct tokenizer *t) {
    if (!t) return;
    tokenizer_parts_fini(&t->parts);
    free(t);
}

/* ---- encoding ---- */

struct work {
    struct pretoken_work *pretoken;
    struct bpe_work *bpe;
    struct strbuf nfc;
};

// Text between two added tokens: normalised by itself, then cut and merged.
static int encode_between(const struct tokenizer *t, struct work *w, const char *text, size_t len,
                          struct ids *out, struct err *e) {
    if (t->parts.nfc && !nfc_is_plain(text, len)) {
        strbuf_reset(&w->nfc);
        nfc_add(&w->nfc, text, len);
        text = w->nfc.p;
        len = w->nfc.len;
    }
    for (size_t first = 0, end; first < len; first = end) {
        int st = pretoken_next(t->parts.pretoken, w->pretoken, text, len, first, &end, e);
        if (st) return st;
        bpe_encode(t->parts.bpe, text + first, end - first, w->bpe, out);
    }
    return ST_OK;
}

static int encode(const struct tokenizer *t, struct work *w, const char *text, size_t len,
                  const struct text_span *plain, size_t plain_count, struct ids *out,
                  struct err *e) {
    struct added_scan scan = {0};
    struct added_match m;
    size_t done = 0;
    while (added_next(t->parts.added, text, len, plain, plain_count, &scan, &m)) {
        int st = encode_between(t, w, text + done, m.first - done, out, e);
        if (st) return st;
        ids_add(out, m.id);
        done = m.first + m.len;
    }
    return encode_between(t, w, text + done, len - done, out, e);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                     const struct text_span *plain, size_t plain_count, struct ids *out,
                     struct err *e) {
    if (len > TOKENIZER_INPUT_BYTES_MAX)
        return err_set(e, ST_INVAL, "text: wanted at most %d bytes, found %zu",
                       TOKENIZER_INPUT_BYTES_MAX, len);
    size_t good = utf8_valid(text, len);
    if (good < len)
        return err_set(e, ST_INVAL, "text: wanted UTF-8, found a bad byte %02x at offset %zu",
                       (unsigned char)text[good], good);
    struct work w = {pretoken_work_new(t->parts.pretoken), bpe_work_new(), {0}};
    size_t before = out->len;
    int st = encode(t, &w, text, len, plain, plain_count, out, e);
    if (st) out->len = before;
    pretoken_work_free(w.pretoken);
    bpe_work_free(w.bpe);
    strbuf_fini(&w.nfc);
    return st;
}

/* ---- ids ---- */

uint32_t tokenizer_size(const struct tokenizer *t) {
    return vocab_size(t->parts.vocab);
}

uint32_t tokenizer_count(const struct tokenizer *t) {
    return vocab_count(t->parts.vocab);
}

bool tokenizer_id_used(const struct tokenizer *t, uint32_t id) {
    return vocab_flags(t->parts.vocab, id) != 0;
}

const char *tokenizer_bytes(const struct tokenizer *t, uint32_t id, size_t *ret_len) {
    return vocab_bytes(t->parts.vocab, id, ret_len);
}

bool tokenizer_is_added(const struct tokenizer *t, uint32_t id) {
    return vocab_flags(t->parts.vocab, id) & VOCAB_ADDED;
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id) {
    return vocab_flags(t->parts.vocab, id) & VOCAB_SPECIAL;
}

int64_t tokenizer_find(const struct tokenizer *t, const char *added_token) {
    return added_find(t->parts.added, added_token, strlen(added_token));
}

size_t tokenizer_used_ranges(const struct tokenizer *t, struct tokenizer_range *ret, size_t cap) {
    size_t count = 0;
    for (uint32_t id = 0; id < tokenizer_size(t); id++) {
        if (!tokenizer_id_used(t, id)) continue;
        if (id > 0 && tokenizer_id_used(t, id - 1)) {
            if (count <= cap) ret[count - 1].last = id;
            continue;
        }
        if (count < cap) ret[count] = (struct tokenizer_range){id, id};
        count++;
    }
    return count;
}

void tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t count,
                      bool skip_special, struct strbuf *out) {
    struct strbuf bytes = {0};
    for (size_t i = 0; i < count; i++) {
        size_t len;
        const char *p = tokenizer_bytes(t, ids[i], &len);
        if (p && !(skip_special && tokenizer_is_special(t, ids[i]))) strbuf_add(&bytes, p, len);
    }
    utf8_add_lossy(out, strbuf_str(&bytes), bytes.len);
    strbuf_fini(&bytes);
}
