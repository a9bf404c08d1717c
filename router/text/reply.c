/* reply: see reply.h. Bytes of ids gather in `bytes` until they are characters; a character goes to the reasoning,
 * where newlines wait for what follows them, or to the content, where a stop string's prefix waits. */
#include "router/text/reply.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/sha256.h"
#include "router/text/tokenizer.h"
#include "router/text/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

// One stop string and how much of it the content ends with (Knuth, Morris and Pratt 1977).
struct stop {
    char *text;
    uint16_t len, matched;
    uint16_t *back; // back[n]: the longest proper prefix that ends text[0, n)
};

struct reply {
    const struct tokenizer *tokenizer;
    bool skip_special, include_stop;
    bool splits, thinking;
    bool after_mark; // newlines here still belong to </think>
    uint32_t min_tokens;
    int64_t think_id, end_think_id, call_id; // -1: the vocabulary has none
    struct stop stops[REPLY_STOPS_MAX];
    size_t stop_count;
    const struct stop *hit;
    struct strbuf bytes; // at most the start of one character between pushes
    struct strbuf held;  // content that a stop string may yet claim
    size_t newlines;     // reasoning that the mark may yet claim
    uint64_t taken, reasoning;
    struct sha256 *hash;
};

/* ---- stop strings ---- */

static void stop_init(struct stop *s, const char *text, size_t len) {
    assert(len > 0 && len <= REPLY_STOP_BYTES_MAX && utf8_valid(text, len) == len);
    s->text = mem_strndup(text, len);
    s->len = (uint16_t)len;
    s->back = mem_calloc(len + 1, sizeof *s->back);
    for (size_t n = 2, k = 0; n <= len; n++) {
        while (k > 0 && text[k] != text[n - 1]) k = s->back[k];
        if (text[k] == text[n - 1]) k++;
        s->back[n] = (uint16_t)k;
    }
}

// True when the stop string ends with this byte.
static bool stop_step(struct stop *s, char byte) {
    if (s->matched == s->len) s->matched = s->back[s->len];
    while (s->matched > 0 && s->text[s->matched] != byte) s->matched = s->back[s->matched];
    if (s->text[s->matched] == byte) s->matched++;
    return s->matched == s->len;
}

static const struct stop *stops_step(struct reply *r, char byte) {
    const struct stop *longest = NULL;
    for (size_t i = 0; i < r->stop_count; i++)
        if (stop_step(&r->stops[i], byte) && (!longest || r->stops[i].len > longest->len))
            longest = &r->stops[i];
    return r->taken >= r->min_tokens ? longest : NULL;
}

// Bytes at the end of the content that are a proper prefix of a stop string.
static size_t stops_hold(const struct reply *r) {
    size_t hold = 0;
    for (size_t i = 0; i < r->stop_count; i++) {
        const struct stop *s = &r->stops[i];
        hold = max_size(hold, s->matched == s->len ? s->back[s->len] : s->matched);
    }
    return hold;
}

/* ---- characters ---- */

static void put_reasoning(struct reply *r, const char *c, size_t len, struct reply_delta *out) {
    if (*c == '\n') {
        r->newlines++;
        return;
    }
    for (; r->newlines; r->newlines--) strbuf_add_char(&out->reasoning, '\n');
    strbuf_add(&out->reasoning, c, len);
}

static void put_hit(struct reply *r, const struct stop *hit, struct reply_delta *out) {
    assert(r->held.len >= hit->len);
    r->hit = hit;
    strbuf_add(&out->content, r->held.p, r->held.len - (r->include_stop ? 0 : hit->len));
    strbuf_reset(&r->held);
    strbuf_reset(&r->bytes);
}

static void put_content(struct reply *r, const char *c, size_t len, struct reply_delta *out) {
    if (r->after_mark && *c == '\n') return;
    r->after_mark = false;
    if (r->stop_count == 0) {
        strbuf_add(&out->content, c, len);
        return;
    }
    const struct stop *hit = NULL;
    strbuf_add(&r->held, c, len);
    // A stop string is whole characters, so it can be complete only at the last byte.
    for (size_t i = 0; i < len; i++) hit = stops_step(r, c[i]);
    if (hit) {
        put_hit(r, hit, out);
        return;
    }
    size_t go = r->held.len - stops_hold(r);
    strbuf_add(&out->content, r->held.p, go);
    strbuf_drop_front(&r->held, go);
}

static void put(struct reply *r, const char *c, size_t len, struct reply_delta *out) {
    if (r->thinking)
        put_reasoning(r, c, len, out);
    else
        put_content(r, c, len, out);
}

static const char bad[] = "\xEF\xBF\xBD"; // U+FFFD

// Passes on what is whole of the bytes.
static void drain(struct reply *r, struct reply_delta *out) {
    size_t i = 0;
    while (!r->hit && i < r->bytes.len) {
        uint32_t cp;
        int n = utf8_read(r->bytes.p + i, r->bytes.len - i, &cp);
        if (n == 0) break;
        if (n > 0)
            put(r, r->bytes.p + i, (size_t)n, out);
        else
            put(r, bad, 3, out);
        i += (size_t)abs(n);
    }
    if (!r->hit) strbuf_drop_front(&r->bytes, i);
}

static void end_thought(struct reply *r, struct reply_delta *out, bool by_mark) {
    if (r->bytes.len) put(r, bad, 3, out); // the mark cuts a character
    strbuf_reset(&r->bytes);
    if (!by_mark) // these newlines were the thought's own
        for (; r->newlines; r->newlines--) strbuf_add_char(&out->reasoning, '\n');
    r->newlines = 0;
    r->thinking = false;
    r->after_mark = by_mark;
    r->reasoning = r->taken - !by_mark;
}

// True: the id is a mark and has no text of its own.
static bool take_mark(struct reply *r, uint32_t id, struct reply_delta *out) {
    if (!r->splits) return false;
    if (id == r->end_think_id) {
        if (r->thinking) end_thought(r, out, true);
        return true;
    }
    if (!r->thinking) return false;
    if (id == r->call_id) end_thought(r, out, false);
    return id == r->think_id;
}

static void take(struct reply *r, uint32_t id, struct reply_delta *out) {
    size_t len;
    sha256_add_le32(r->hash, &id, 1);
    r->taken++;
    if (take_mark(r, id, out)) return;
    const char *text = tokenizer_bytes(r->tokenizer, id, &len);
    if (!text || (r->skip_special && tokenizer_is_special(r->tokenizer, id))) return;
    strbuf_add(&r->bytes, text, len);
    drain(r, out);
}

/* ---- the whole ---- */

struct reply *reply_new(const struct reply_options *o) {
    assert(o->stop_count <= REPLY_STOPS_MAX);
    struct reply *r = mem_calloc(1, sizeof *r);
    r->tokenizer = o->tokenizer;
    r->skip_special = o->skip_special;
    r->include_stop = o->include_stop;
    r->splits = o->split_thought;
    r->thinking = o->split_thought && o->in_thought;
    r->min_tokens = o->min_tokens;
    r->think_id = tokenizer_find(o->tokenizer, "<think>");
    r->end_think_id = tokenizer_find(o->tokenizer, "</think>");
    r->call_id = tokenizer_find(o->tokenizer, "<tool_call>");
    for (size_t i = 0; i < o->stop_count; i++)
        stop_init(&r->stops[r->stop_count++], o->stops[i], o->stop_lens[i]);
    r->hash = sha256_new();
    return r;
}

void reply_free(struct reply *r) {
    if (!r) return;
    for (size_t i = 0; i < r->stop_count; i++) {
        free(r->stops[i].text);
        free(r->stops[i].back);
    }
    strbuf_fini(&r->bytes);
    strbuf_fini(&r->held);
    sha256_free(r->hash);
    free(r);
}

void reply_delta_fini(struct reply_delta *d) {
    strbuf_fini(&d->reasoning);
    strbuf_fini(&d->content);
}

size_t reply_push(struct reply *r, const uint32_t *ids, size_t count, struct reply_delta *out) {
    size_t i = 0;
    while (i < count && !r->hit) take(r, ids[i++], out);
    return i;
}

void reply_push_stop_id(struct reply *r, uint32_t id) {
    if (r->hit) return;
    sha256_add_le32(r->hash, &id, 1);
    r->taken++;
}

void reply_finish(struct reply *r, struct reply_delta *out) {
    for (; r->newlines; r->newlines--) strbuf_add_char(&out->reasoning, '\n');
    strbuf_add(&out->content, strbuf_str(&r->held), r->held.len);
    strbuf_reset(&r->held);
    strbuf_reset(&r->bytes);
}

enum reply_end reply_state(const struct reply *r) {
    return r->hit ? REPLY_STOP_STRING : REPLY_OPEN;
}

const char *reply_stop_string(const struct reply *r, size_t *ret_len) {
    if (!r->hit) return NULL;
    *ret_len = r->hit->len;
    return r->hit->text;
}

bool reply_in_thought(const struct reply *r) {
    return r->thinking;
}

uint64_t reply_tokens(const struct reply *r) {
    return r->taken;
}

uint64_t reply_reasoning_tokens(const struct reply *r) {
    return r->thinking ? r->taken : r->reasoning;
}

void reply_token_sha256(const struct reply *r, char ret_hex[65]) {
    uint8_t digest[SHA256_BYTES];
    sha256_digest(r->hash, digest);
    sha256_hex(digest, ret_hex);
}
