/* bench_receipt: see bench_receipt.h. */
#include "router/bench_receipt.h"
#include "common/err.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the members: one table for both ways ---- */

enum member_kind { TEXT, COUNT, WIDE, REAL, FLAG };
struct member {
    const char *name;
    enum member_kind kind;
    size_t offset, bytes; // bytes: room of a TEXT
};
#define MEMBER(kind_, struct_, field_)                                                             \
    { #field_, kind_, offsetof(struct struct_, field_), sizeof((struct struct_ *)0)->field_ }

static const struct member receipt_members[] = {
    MEMBER(TEXT, bench_receipt, date),
    MEMBER(TEXT, bench_receipt, client),
    MEMBER(TEXT, bench_receipt, url),
    MEMBER(TEXT, bench_receipt, build),
    MEMBER(TEXT, bench_receipt, model),
    MEMBER(TEXT, bench_receipt, fingerprint),
    MEMBER(TEXT, bench_receipt, checkpoint),
    MEMBER(TEXT, bench_receipt, device),
    MEMBER(TEXT, bench_receipt, prompts_sha256),
    MEMBER(TEXT, bench_receipt, cold_sha256),
    MEMBER(COUNT, bench_receipt, tokens),
    MEMBER(COUNT, bench_receipt, reps),
    MEMBER(WIDE, bench_receipt, seed),
};
static const struct member cell_members[] = {
    MEMBER(TEXT, bench_cell, name),    MEMBER(COUNT, bench_cell, level),
    MEMBER(COUNT, bench_cell, equal),  MEMBER(COUNT, bench_cell, unequal),
    MEMBER(COUNT, bench_cell, failed), MEMBER(COUNT, bench_cell, first),
};
static const struct member figure_members[] = {
    MEMBER(REAL, bench_figures, first_token_ms),
    MEMBER(REAL, bench_figures, fill_ms),
    MEMBER(REAL, bench_figures, stream_tokens_per_s),
    MEMBER(REAL, bench_figures, total_tokens_per_s),
    MEMBER(REAL, bench_figures, wall_tokens_per_s),
    MEMBER(REAL, bench_figures, tokens_per_round),
    MEMBER(REAL, bench_figures, round_gap_ms),
};
static const struct member reply_members[] = {
    MEMBER(COUNT, bench_reply, stream),        MEMBER(COUNT, bench_reply, rep),
    MEMBER(FLAG, bench_reply, failed),         MEMBER(FLAG, bench_reply, unequal),
    MEMBER(FLAG, bench_reply, by_logits),      MEMBER(TEXT, bench_reply, why),
    MEMBER(COUNT, bench_reply, prompt_tokens), MEMBER(COUNT, bench_reply, cached_tokens),
    MEMBER(COUNT, bench_reply, tokens),        MEMBER(COUNT, bench_reply, rounds),
    MEMBER(REAL, bench_reply, first_token_ms), MEMBER(REAL, bench_reply, fill_ms),
    MEMBER(REAL, bench_reply, tokens_per_s),
};
static const struct member digest_members[] = {
    MEMBER(TEXT, bench_digest, token_sha256),
    MEMBER(TEXT, bench_digest, logits_hash),
};
#define TABLE(table_) table_, sizeof table_ / sizeof *table_

// A text of the command line may be no UTF-8, which JSON cannot hold.
static json_t *text_value(const char *s) {
    json_t *v = json_string(s);
    return v ? v : json_string("");
}

static json_t *member_value(const struct member *m, const void *at) {
    switch (m->kind) {
    case TEXT: return text_value(at);
    case COUNT: return json_integer(*(const uint32_t *)at);
    case WIDE: return json_integer((json_int_t) * (const uint64_t *)at);
    case FLAG: return json_boolean(*(const bool *)at);
    case REAL: break;
    }
    double x = *(const double *)at;
    return isfinite(x) ? json_real(x) : json_null();
}

static void write_members(json_t *o, const void *from, const struct member *v, size_t count) {
    for (size_t i = 0; i < count; i++)
        json_object_set_new(o, v[i].name, member_value(&v[i], (const char *)from + v[i].offset));
}

static int read_member(const struct member *m, const json_t *v, void *to, struct err *e) {
    static const char *const wanted[] = {"text", "a count", "a count", "a number or null",
                                         "true or false"};
    json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;
    const char *s = json_string_value(v);
    bool ok = false;
    switch (m->kind) {
    case TEXT:
        ok = s && json_string_length(v) < m->bytes;
        if (ok) memcpy(to, s, strlen(s) + 1);
        break;
    case COUNT:
        ok = n >= 0 && n <= UINT32_MAX;
        if (ok) *(uint32_t *)to = (uint32_t)n;
        break;
    case WIDE:
        ok = n >= 0;
        if (ok) *(uint64_t *)to = (uint64_t)n;
        break;
    case REAL:
        ok = json_is_number(v) || json_is_null(v);
        if (ok) *(double *)to = json_is_null(v) ? NAN : json_number_value(v);
        break;
    case FLAG:
        ok = json_is_boolean(v);
        if (ok) *(bool *)to = json_is_true(v);
        break;
    }
    if (ok) return ST_OK;
    return err_set(e, ST_CORRUPT, "member %s: wanted %s, found %s", m->name, wanted[m->kind],
                   v ? "something else" : "none");
}

static int read_members(const json_t *o, void *to, const struct member *v, size_t count,
                        struct err *e) {
    if (!json_is_object(o)) return err_set(e, ST_CORRUPT, "wanted an object, found something else");
    for (size_t i = 0; i < count; i++) {
        int st = read_member(&v[i], json_object_get(o, v[i].name), (char *)to + v[i].offset, e);
        if (st) return st;
    }
    return ST_OK;
}

/* ---- to JSON ---- */

static json_t *reply_json(const struct bench_reply *r) {
    json_t *o = json_object();
    write_members(o, r, TABLE(reply_members));
    write_members(o, &r->digest, TABLE(digest_members));
    return o;
}

static json_t *checks_json(const struct bench_cell *c) {
    json_t *o = json_object();
    for (int i = 0; i < BENCH_CHECK_COUNT; i++)
        json_object_set_new(o, bench_check_name((enum bench_check)i),
                            json_pack("{s:I,s:I}", "equal", (json_int_t)c->check_equal[i],
                                      "unequal", (json_int_t)c->check_unequal[i]));
    return o;
}

static json_t *cell_json(const struct bench_cell *c) {
    json_t *o = json_object(), *replies = json_array();
    write_members(o, c, TABLE(cell_members));
    json_object_set_new(o, "kind", json_string(bench_kind_name(c->kind)));
    json_object_set_new(o, "class", json_string(bench_class_name(c->class)));
    json_object_set_new(o, "draw", json_string(bench_draw_name(c->draw)));
    write_members(o, &c->figures, TABLE(figure_members));
    json_object_set_new(o, "checks", checks_json(c));
    for (size_t i = 0; i < c->reply_count; i++)
        json_array_append_new(replies, reply_json(&c->replies[i]));
    json_object_set_new(o, "replies", replies);
    return o;
}

json_t *bench_receipt_to_json(const struct bench_receipt *r) {
    json_t *o = json_object(), *cells = json_array();
    json_object_set_new(o, "railyard_bench", json_integer(BENCH_RECEIPT_VERSION));
    write_members(o, r, TABLE(receipt_members));
    for (size_t i = 0; i < r->cell_count; i++)
        json_array_append_new(cells, cell_json(&r->cells[i]));
    json_object_set_new(o, "cells", cells);
    return o;
}

/* ---- from JSON ---- */

static int read_word(const json_t *o, const char *key, const char *(*name)(int), int count,
                     int *ret, struct err *e) {
    const char *s = json_string_value(json_object_get(o, key));
    for (int i = 0; s && i < count; i++) {
        if (strcmp(s, name(i))) continue;
        *ret = i;
        return ST_OK;
    }
    return err_set(e, ST_CORRUPT, "member %s: wanted a known word, found '%.60s'", key,
                   s ? s : "none");
}

static const char *kind_name(int i) {
    return bench_kind_name((enum bench_kind)i);
}
static const char *class_name(int i) {
    return bench_class_name((enum bench_class)i);
}
static const char *draw_name(int i) {
    return bench_draw_name((enum bench_draw)i);
}

static int read_words(const json_t *o, struct bench_cell *c, struct err *e) {
    int kind = 0, class = 0, draw = 0;
    int st = read_word(o, "kind", kind_name, BENCH_COLD + 1, &kind, e);
    if (!st) st = read_word(o, "class", class_name, BENCH_CLASS_COUNT, &class, e);
    if (!st) st = read_word(o, "draw", draw_name, BENCH_DRAW_COUNT, &draw, e);
    if (st) return st;
    c->kind = (enum bench_kind)kind;
    c->class = (enum bench_class) class;
    c->draw = (enum bench_draw)draw;
    return ST_OK;
}

static int read_checks(const json_t *o, struct bench_cell *c, struct err *e) {
    static const struct member equal = {"equal", COUNT, 0, 0}, unequal = {"unequal", COUNT, 0, 0};
    int st = ST_OK;
    for (int i = 0; i < BENCH_CHECK_COUNT && !st; i++) {
        const json_t *v = json_object_get(o, bench_check_name((enum bench_check)i));
        st = read_members(v, &c->check_equal[i], &equal, 1, e);
        if (!st) st = read_members(v, &c->check_unequal[i], &unequal, 1, e);
    }
    return st;
}

static int read_replies(const json_t *list, struct bench_cell *c, struct err *e) {
    if (!json_is_array(list))
        return err_set(e, ST_CORRUPT, "member replies: wanted an array, found something else");
    int st = ST_OK;
    for (size_t i = 0; i < json_array_size(list) && !st; i++) {
        const json_t *o = json_array_get(list, i);
        struct bench_reply *r = bench_cell_add(c);
        st = read_members(o, r, TABLE(reply_members), e);
        if (!st) st = read_members(o, &r->digest, TABLE(digest_members), e);
        if (st) err_prefix(e, "reply %zu", i);
    }
    return st;
}

static int read_cell(const json_t *o, struct bench_receipt *r, struct err *e) {
    struct bench_cell *c = bench_receipt_add(r);
    int st = read_members(o, c, TABLE(cell_members), e);
    if (!st) st = read_words(o, c, e);
    if (!st) st = read_members(o, &c->figures, TABLE(figure_members), e);
    if (!st) st = read_checks(json_object_get(o, "checks"), c, e);
    if (!st) st = read_replies(json_object_get(o, "replies"), c, e);
    if (st) err_prefix(e, "cell %zu", r->cell_count - 1);
    return st;
}

int bench_receipt_from_json(struct bench_receipt *ret, const json_t *o, struct err *e) {
    const json_t *version = json_object_get(o, "railyard_bench");
    if (!json_is_integer(version))
        return err_set(e, ST_CORRUPT, "wanted the receipt of a bench, found something else");
    if (json_integer_value(version) != BENCH_RECEIPT_VERSION)
        return err_set(e, ST_VERSION, "wanted a receipt of version %d, found %lld",
                       BENCH_RECEIPT_VERSION, (long long)json_integer_value(version));
    struct bench_receipt r = {0};
    const json_t *cells = json_object_get(o, "cells");
    int st = read_members(o, &r, TABLE(receipt_members), e);
    if (!st && !json_is_array(cells))
        st = err_set(e, ST_CORRUPT, "member cells: wanted an array, found something else");
    for (size_t i = 0; !st && i < json_array_size(cells); i++)
        st = read_cell(json_array_get(cells, i), &r, e);
    if (st)
        bench_receipt_fini(&r);
    else
        *ret = r;
    return st;
}

/* ---- files ---- */

int bench_receipt_save(const struct bench_receipt *r, const char *path, struct err *e) {
    json_t *o = bench_receipt_to_json(r);
    errno = 0;
    int rc = json_dump_file(o, path, JSON_INDENT(1));
    json_decref(o);
    return rc ? (int)err_errno(e, "write '%.200s'", path) : ST_OK;
}

int bench_receipt_load(struct bench_receipt *ret, const char *path, struct err *e) {
    struct stat s;
    if (stat(path, &s)) return err_errno(e, "open receipt '%.200s'", path);
    if (!S_ISREG(s.st_mode) || s.st_size > BENCH_RECEIPT_BYTES_MAX)
        return err_set(e, ST_INVAL, "receipt '%.200s': wanted a file of at most %d bytes", path,
                       BENCH_RECEIPT_BYTES_MAX);
    json_error_t why;
    json_t *o = json_load_file(path, 0, &why);
    int st =
        o ? bench_receipt_from_json(ret, o, e)
          : (int)err_set(e, ST_CORRUPT, "wanted JSON, found: %.150s (line %d)", why.text, why.line);
    if (st) err_prefix(e, "receipt '%.200s'", path);
    json_decref(o);
    return st;
}
