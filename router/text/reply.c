/* reply: see reply.h. Bytes of ids gather in `bytes` until they are characters. A character goes to the reasoning,
 * where newlines wait for what follows them; to the call that is open; or to the content: there a stop string's
 * prefix waits in `held`, and what leaves it waits in `space` and `function` while it could be the way to a call. */
#include "router/text/reply.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/planted.h"
#include "common/sha256.h"
#include "router/text/origin.h"
#include "router/text/tokenizer.h"
#include "router/text/toolcall.h"
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
    bool skip_special, include_stop, one_call;
    bool splits, thinking;
    bool after_mark; // newlines here still belong to </think>
    bool after_call; // and white space here to </tool_call>
    uint32_t min_tokens;
    int64_t think_id, end_think_id, call_id, end_call_id; // -1: the vocabulary has none
    struct stop stops[REPLY_STOPS_MAX];
    size_t stop_count;
    enum reply_end over;
    const struct stop *hit;
    struct strbuf bytes; // at most the start of one character between pushes
    struct strbuf held;  // content that a stop string may yet claim
    struct strbuf space; // white space that a call may yet claim
    size_t function;     // so many bytes of <function= stand behind it
    size_t newlines;     // reasoning that the mark may yet claim
    uint64_t taken, reasoning;
    struct toolcall *calls;  // NULL: not looked for
    struct origin *origin;   // NULL: not asked for
    struct reply_delta *out; // of the call at hand
    struct sha256 *hash;
};

static const char function_mark[] = "<function=";

/* ---- what comes out ---- */

static struct reply_piece *piece(struct reply_delta *d, enum reply_kind kind, uint32_t call) {
    struct reply_piece *last = d->piece_count ? &d->pieces[d->piece_count - 1] : NULL;
    if (last && last->kind == kind && last->call == call) return last;
    if (d->piece_count == d->piece_cap) {
        d->piece_cap = d->piece_cap ? d->piece_cap * 2 : 4;
        d->pieces = mem_realloc_array(d->pieces, d->piece_cap, sizeof *d->pieces);
    }
    d->pieces[d->piece_count] = (struct reply_piece){.kind = kind, .call = call};
    return &d->pieces[d->piece_count++];
}

static void show_reasoning(struct reply *r, const char *s, size_t len) {
    strbuf_add(&r->out->reasoning, s, len);
    piece(r->out, REPLY_REASONING, 0)->len += len;
}

static void show_content(struct reply *r, const char *s, size_t len) {
    if (!len) return;
    strbuf_add(&r->out->content, s, len);
    struct reply_piece *p = piece(r->out, REPLY_CONTENT, 0);
    p->len += len;
    if (r->origin) p->ids += origin_out(r->origin, len, true, r->out);
}

// Bytes that are no content after all.
static void hide(struct reply *r, size_t len) {
    size_t told = r->origin ? origin_out(r->origin, len, false, r->out) : 0;
    if (told) piece(r->out, REPLY_CONTENT, 0)->ids += told; // the first of their bytes were shown
}

static void on_name(void *arg, uint32_t call, const char *name, size_t len) {
    struct reply *r = arg;
    strbuf_add(&r->out->calls, name, len);
    piece(r->out, REPLY_CALL, call)->len += len;
}

static void on_arguments(void *arg, uint32_t call, const char *text, size_t len) {
    struct reply *r = arg;
    strbuf_add(&r->out->calls, text, len);
    piece(r->out, REPLY_ARGUMENTS, call)->len += len;
}

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

/* ---- content, and the way to a call ---- */

static void end_reply(struct reply *r, enum reply_end why) {
    r->over = why;
    strbuf_reset(&r->held);
    strbuf_reset(&r->bytes);
}

static void call_text(struct reply *r, const char *s, size_t len) {
    for (size_t i = 0; i < len && !r->over; i++) {
        toolcall_text(r->calls, s + i, 1);
        if (r->one_call && toolcall_complete(r->calls)) end_reply(r, REPLY_ONE_CALL);
    }
    hide(r, len);
}

// What waited for a call that did not come.
static void show_waiting(struct reply *r) {
    show_content(r, strbuf_str(&r->space), r->space.len);
    show_content(r, function_mark, r->function);
    strbuf_reset(&r->space);
    r->function = 0;
}

static void begin_call(struct reply *r, bool by_mark) {
    if (by_mark) {
        if (r->function) show_waiting(r); // "<func" alone is text
        toolcall_open(r->calls);
    } else {
        toolcall_open_function(r->calls);
    }
    hide(r, r->space.len + r->function);
    strbuf_reset(&r->space);
    r->function = 0;
    r->after_call = false;
    for (size_t i = 0; i < r->stop_count; i++) r->stops[i].matched = 0;
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// One byte of content that no stop string claims.
static void pass(struct reply *r, char c) {
    if (c == function_mark[r->function]) {
        r->after_call = false;
        if (++r->function == sizeof function_mark - 1) begin_call(r, false);
        return;
    }
    if (r->function) show_waiting(r);
    if (is_space(c) && r->after_call) {
        hide(r, 1);
        return;
    }
    r->after_call = false;
    if (is_space(c)) {
        strbuf_add_char(&r->space, c);
    } else if (c == *function_mark) {
        r->function = 1;
    } else {
        show_waiting(r);
        show_content(r, &c, 1);
    }
}

static void leave(struct reply *r, const char *s, size_t len) {
    if (!r->calls) {
        show_content(r, s, len);
        return;
    }
    size_t i = 0;
    while (i < len && !toolcall_inside(r->calls)) pass(r, s[i++]);
    if (i < len) call_text(r, s + i, len - i);
}

// The first bytes of what is held are no part of a stop string; if they begin a call, the rest is the call's.
static void leave_held(struct reply *r, size_t len) {
    leave(r, strbuf_str(&r->held), len);
    if (r->calls && toolcall_inside(r->calls)) {
        if (r->held.len > len) call_text(r, r->held.p + len, r->held.len - len);
        strbuf_reset(&r->held);
    } else {
        strbuf_drop_front(&r->held, len);
    }
}

static void put_hit(struct reply *r, const struct stop *hit) {
    assert(r->held.len >= hit->len);
    size_t shown = r->held.len - (r->include_stop ? 0 : hit->len);
    r->hit = hit;
    show_waiting(r);
    show_content(r, r->held.p, shown);
    hide(r, r->held.len - shown);
    end_reply(r, REPLY_STOP_STRING);
}

static void put_content(struct reply *r, const char *c, size_t len) {
    if (r->calls && toolcall_inside(r->calls)) {
        call_text(r, c, len);
        return;
    }
    if (r->after_mark && *c == '\n') {
        hide(r, len);
        return;
    }
    r->after_mark = false;
    if (r->stop_count == 0) {
        leave(r, c, len);
        return;
    }
    const struct stop *hit = NULL;
    strbuf_add(&r->held, c, len);
    // A stop string is whole characters, so it can be complete only at the last byte.
    for (size_t i = 0; i < len; i++) hit = stops_step(r, c[i]);
    if (hit)
        put_hit(r, hit);
    else
        leave_held(r, r->held.len - stops_hold(r));
}

/* ---- characters ---- */

static void show_newlines(struct reply *r) {
    for (; r->newlines; r->newlines--) show_reasoning(r, "\n", 1);
}

static void put_reasoning(struct reply *r, const char *c, size_t len) {
    if (*c == '\n') {
        r->newlines++;
        return;
    }
    show_newlines(r);
    show_reasoning(r, c, len);
}

static const char bad[] = "\xEF\xBF\xBD"; // U+FFFD

// A character of n raw bytes.
static void put(struct reply *r, const char *c, size_t len, size_t raw_len) {
    if (r->thinking) {
        put_reasoning(r, c, len);
        return;
    }
    if (r->origin) origin_char(r->origin, raw_len, len);
    put_content(r, c, len);
}

// Passes on what is whole of the bytes.
static void drain(struct reply *r) {
    size_t i = 0;
    while (!r->over && i < r->bytes.len) {
        uint32_t cp;
        int n = utf8_read(r->bytes.p + i, r->bytes.len - i, &cp);
        if (n == 0) break;
        if (n > 0)
            put(r, r->bytes.p + i, (size_t)n, (size_t)n);
        else
            put(r, bad, 3, (size_t)-n);
        i += (size_t)abs(n);
    }
    if (!r->over) strbuf_drop_front(&r->bytes, i);
}

/* ---- marks ---- */

static void cut_character(struct reply *r) {
    if (r->bytes.len) put(r, bad, 3, r->bytes.len);
    strbuf_reset(&r->bytes);
}

static void end_thought(struct reply *r, bool by_mark) {
    cut_character(r);
    if (!by_mark) show_newlines(r); // these were the thought's own
    r->newlines = 0;
    r->thinking = false;
    r->after_mark = by_mark;
    r->reasoning = r->taken - !by_mark;
}

static void open_call(struct reply *r) {
    cut_character(r);
    if (r->over) return;
    leave_held(r, r->held.len);
    begin_call(r, true);
    if (r->one_call && toolcall_complete(r->calls)) end_reply(r, REPLY_ONE_CALL);
}

static void close_call(struct reply *r) {
    cut_character(r);
    if (r->over) return;
    toolcall_close(r->calls);
    r->after_call = true;
    if (r->one_call && toolcall_complete(r->calls)) end_reply(r, REPLY_ONE_CALL);
}

// True: the id is a mark and has no text of its own.
static bool take_mark(struct reply *r, uint32_t id) {
    if (!r->splits || (r->calls && toolcall_in_value(r->calls))) return false;
    bool in_call = r->calls && toolcall_inside(r->calls);
    if (id == r->end_think_id) {
        if (r->thinking) end_thought(r, true);
        return true;
    }
    if (id == r->call_id) {
        if (r->thinking) end_thought(r, false);
        if (r->calls) open_call(r);
        return r->calls;
    }
    if (id == r->end_call_id && in_call) {
        close_call(r);
        return true;
    }
    return id == r->think_id && (r->thinking || in_call);
}

static void take(struct reply *r, uint32_t id) {
    size_t len;
    sha256_add_le32(r->hash, &id, 1);
    r->taken++;
    if (take_mark(r, id)) return;
    const char *text = tokenizer_bytes(r->tokenizer, id, &len);
    if (!text || (r->skip_special && tokenizer_is_special(r->tokenizer, id))) return;
    strbuf_add(&r->bytes, text, len);
    if (r->origin && !r->thinking) origin_id(r->origin, (size_t)r->taken - 1, len);
    drain(r);
}

/* ---- the whole ---- */

struct reply *reply_new(const struct reply_options *o) {
    assert(o->stop_count <= REPLY_STOPS_MAX);
    struct reply *r = mem_calloc(1, sizeof *r);
    r->tokenizer = o->tokenizer;
    r->skip_special = o->skip_special;
    r->include_stop = o->include_stop;
    r->one_call = o->one_call;
    r->splits = o->split_thought;
    r->thinking = o->split_thought && o->in_thought;
    r->min_tokens = o->min_tokens;
    r->think_id = tokenizer_find(o->tokenizer, "<think>");
    r->end_think_id = tokenizer_find(o->tokenizer, "</think>");
    r->call_id = tokenizer_find(o->tokenizer, "<tool_call>");
    r->end_call_id = tokenizer_find(o->tokenizer, "</tool_call>");
    for (size_t i = 0; i < o->stop_count; i++)
        stop_init(&r->stops[r->stop_count++], o->stops[i], o->stop_lens[i]);
    if (o->parse_calls && o->split_thought)
        r->calls = toolcall_new(o->tools, &(struct toolcall_sink){r, on_name, on_arguments});
    if (o->content_ids) r->origin = mem_calloc(1, sizeof *r->origin);
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
    strbuf_fini(&r->space);
    toolcall_free(r->calls);
    if (r->origin) origin_fini(r->origin);
    free(r->origin);
    sha256_free(r->hash);
    free(r);
}

void reply_delta_reset(struct reply_delta *d) {
    strbuf_reset(&d->reasoning);
    strbuf_reset(&d->content);
    strbuf_reset(&d->calls);
    d->piece_count = d->id_count = 0;
}

void reply_delta_fini(struct reply_delta *d) {
    strbuf_fini(&d->reasoning);
    strbuf_fini(&d->content);
    strbuf_fini(&d->calls);
    free(d->pieces);
    free(d->ids);
}

size_t reply_push(struct reply *r, const uint32_t *ids, size_t count, struct reply_delta *out) {
    size_t i = 0;
    r->out = out;
    while (i < count && !r->over) take(r, ids[i++]);
    if (PLANTED && r->space.len && r->function == sizeof function_mark - 2) show_waiting(r);
    return i;
}

void reply_push_stop_id(struct reply *r, uint32_t id) {
    if (r->over) return;
    sha256_add_le32(r->hash, &id, 1);
    r->taken++;
}

void reply_finish(struct reply *r, bool cut, struct reply_delta *out) {
    r->out = out;
    show_newlines(r);
    strbuf_reset(&r->bytes);
    if (r->over) return;
    leave_held(r, r->held.len);
    show_waiting(r);
    if (r->calls) toolcall_finish(r->calls, cut);
}

enum reply_end reply_state(const struct reply *r) {
    return r->over;
}

const char *reply_stop_string(const struct reply *r, size_t *ret_len) {
    if (!r->hit) return NULL;
    *ret_len = r->hit->len;
    return r->hit->text;
}

uint64_t reply_tokens(const struct reply *r) {
    return r->taken;
}

uint64_t reply_reasoning_tokens(const struct reply *r) {
    return r->thinking ? r->taken : r->reasoning;
}

uint32_t reply_calls(const struct reply *r) {
    return r->calls ? toolcall_complete(r->calls) : 0;
}

void reply_token_sha256(const struct reply *r, char ret_hex[65]) {
    uint8_t digest[SHA256_BYTES];
    sha256_digest(r->hash, digest);
    sha256_hex(digest, ret_hex);
}
