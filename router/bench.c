/* bench: see bench.h. */
#include "router/bench.h"
#include "common/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *bench_class_name(enum bench_class c) {
    return c == BENCH_CODE ? "code" : "chat";
}

const char *bench_draw_name(enum bench_draw d) {
    return d == BENCH_GREEDY ? "greedy" : "sampled";
}

const char *bench_kind_name(enum bench_kind k) {
    static const char *const names[] = {"serial", "alone", "level", "cold"};
    return names[k];
}

const char *bench_check_name(enum bench_check c) {
    static const char *const names[] = {"serial", "alone", "repeat"};
    return names[c];
}

enum bench_equality bench_digest_compare(const struct bench_digest *a,
                                         const struct bench_digest *b) {
    if (strcmp(a->token_sha256, b->token_sha256)) return BENCH_UNEQUAL_TOKENS;
    if (!*a->logits_hash || !*b->logits_hash) return BENCH_EQUAL_TOKENS;
    return strcmp(a->logits_hash, b->logits_hash) ? BENCH_UNEQUAL_LOGITS : BENCH_EQUAL;
}

bool bench_is_equal(enum bench_equality q) {
    return q == BENCH_EQUAL || q == BENCH_EQUAL_TOKENS;
}

void bench_cell_name(struct bench_cell *c) {
    if (c->kind == BENCH_COLD)
        snprintf(c->name, sizeof c->name, "cold/%u", c->level);
    else if (c->kind == BENCH_LEVEL)
        snprintf(c->name, sizeof c->name, "%s/%s/%u", bench_class_name(c->class),
                 bench_draw_name(c->draw), c->level);
    else
        snprintf(c->name, sizeof c->name, "%s/%s/%s", bench_class_name(c->class),
                 bench_draw_name(c->draw), bench_kind_name(c->kind));
}

void bench_receipt_fini(struct bench_receipt *r) {
    for (size_t i = 0; i < r->cell_count; i++) free(r->cells[i].replies);
    free(r->cells);
    memset(r, 0, sizeof *r);
}

struct bench_cell *bench_receipt_add(struct bench_receipt *r) {
    r->cells = mem_realloc_array(r->cells, r->cell_count + 1, sizeof *r->cells);
    struct bench_cell *c = &r->cells[r->cell_count++];
    *c = (struct bench_cell){.figures = {NAN, NAN, NAN, NAN, NAN, NAN, NAN}};
    return c;
}

struct bench_reply *bench_cell_add(struct bench_cell *c) {
    c->replies = mem_realloc_array(c->replies, c->reply_count + 1, sizeof *c->replies);
    struct bench_reply *r = &c->replies[c->reply_count++];
    *r = (struct bench_reply){.first_token_ms = NAN, .fill_ms = NAN, .tokens_per_s = NAN};
    return r;
}
