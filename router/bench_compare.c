/* bench_compare: see bench_compare.h. */
#include "router/bench_compare.h"
#include "common/err.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

static int same_text(const char *what, const char *a, const char *b, struct err *e) {
    if (!*a || !*b)
        return err_set(e, ST_INVAL, "cannot compare: %s of receipt %s is not known", what,
                       *a ? "B" : "A");
    if (strcmp(a, b))
        return err_set(e, ST_INVAL, "cannot compare: A has %s %.64s, B has %.64s", what, a, b);
    return ST_OK;
}

static int same_count(const char *what, uint64_t a, uint64_t b, struct err *e) {
    if (a == b) return ST_OK;
    return err_set(e, ST_INVAL, "cannot compare: A was run with --%s=%llu, B with %llu", what,
                   (unsigned long long)a, (unsigned long long)b);
}

static int check_comparable(const struct bench_receipt *a, const struct bench_receipt *b,
                            struct err *e) {
    int st = same_text("checkpoint", a->checkpoint, b->checkpoint, e);
    if (!st) st = same_text("prompts", a->prompts_sha256, b->prompts_sha256, e);
    if (!st && *a->cold_sha256 && *b->cold_sha256)
        st = same_text("cold prompts", a->cold_sha256, b->cold_sha256, e);
    if (!st) st = same_count("tokens", a->tokens, b->tokens, e);
    if (!st) st = same_count("seed", a->seed, b->seed, e);
    return st;
}

static const struct bench_cell *find_cell(const struct bench_receipt *r, const char *name) {
    for (size_t i = 0; i < r->cell_count; i++)
        if (!strcmp(r->cells[i].name, name)) return &r->cells[i];
    return NULL;
}

static const struct bench_reply *find_reply(const struct bench_cell *c,
                                            const struct bench_reply *like) {
    for (size_t i = 0; i < c->reply_count; i++)
        if (c->replies[i].stream == like->stream && c->replies[i].rep == like->rep)
            return &c->replies[i];
    return NULL;
}

static void judge_pair(struct bench_verdict *v, const struct bench_reply *a,
                       const struct bench_reply *b) {
    bool first = !v->unequal && !v->failed;
    enum bench_equality q = bench_digest_compare(&a->digest, &b->digest);
    if (a->failed || b->failed) {
        v->failed++;
    } else if (bench_is_equal(q)) {
        v->equal++;
        v->by_logits += q == BENCH_EQUAL;
        return;
    } else {
        v->unequal++;
    }
    if (!first) return;
    v->stream = a->stream;
    v->rep = a->rep;
}

static void judge_cell(struct bench_comparison *ret, const struct bench_cell *a,
                       const struct bench_cell *b) {
    ret->cells = mem_realloc_array(ret->cells, ret->cell_count + 1, sizeof *ret->cells);
    struct bench_verdict *v = &ret->cells[ret->cell_count++];
    *v = (struct bench_verdict){0};
    memcpy(v->name, a->name, sizeof v->name);
    for (size_t i = 0; i < a->reply_count; i++) {
        const struct bench_reply *other = find_reply(b, &a->replies[i]);
        if (other)
            judge_pair(v, &a->replies[i], other);
        else
            ret->unpaired++;
    }
    for (size_t i = 0; i < b->reply_count; i++) ret->unpaired += !find_reply(a, &b->replies[i]);
    ret->equal += v->equal;
    ret->unequal += v->unequal;
    ret->failed += v->failed;
    ret->by_logits += v->by_logits;
}

int bench_compare(struct bench_comparison *ret, const struct bench_receipt *a,
                  const struct bench_receipt *b, struct err *e) {
    struct bench_comparison c = {0};
    int st = check_comparable(a, b, e);
    if (st) return st;
    for (size_t i = 0; i < a->cell_count; i++) {
        const struct bench_cell *other = find_cell(b, a->cells[i].name);
        if (other)
            judge_cell(&c, &a->cells[i], other);
        else
            c.only_a++;
    }
    for (size_t i = 0; i < b->cell_count; i++) c.only_b += !find_cell(a, b->cells[i].name);
    if (!(c.equal + c.unequal + c.failed)) {
        bench_comparison_fini(&c);
        return err_set(e, ST_INVAL, "cannot compare: A and B have no cell in common");
    }
    *ret = c;
    return ST_OK;
}

void bench_comparison_fini(struct bench_comparison *c) {
    free(c->cells);
    memset(c, 0, sizeof *c);
}

static void print_side(const char *name, const struct bench_receipt *r, FILE *out) {
    fprintf(out, "%s  build %s, %s, %s, %s\n", name, *r->build ? r->build : "unknown", r->date,
            *r->device ? r->device : "device unknown", *r->model ? r->model : "model unknown");
}

void bench_comparison_print(const struct bench_comparison *c, const struct bench_receipt *a,
                            const struct bench_receipt *b, FILE *out) {
    print_side("A", a, out);
    print_side("B", b, out);
    if (strcmp(a->device, b->device))
        fprintf(out, "note: the devices differ, and bits may differ between devices\n");
    fprintf(out, "\n%-22s %7s %7s %6s %9s\n", "cell", "equal", "unequal", "failed", "by logits");
    for (size_t i = 0; i < c->cell_count; i++) {
        const struct bench_verdict *v = &c->cells[i];
        fprintf(out, "%-22s %7u %7u %6u %9u\n", v->name, v->equal, v->unequal, v->failed,
                v->by_logits);
    }
    fputc('\n', out);
    for (size_t i = 0; i < c->cell_count; i++) {
        const struct bench_verdict *v = &c->cells[i];
        if (!v->unequal && !v->failed) continue;
        fprintf(out, "%s %s: %u of %u, first stream %u rep %u\n", v->unequal ? "UNEQUAL" : "FAILED",
                v->name, v->unequal + v->failed, v->equal + v->unequal + v->failed, v->stream,
                v->rep);
    }
    if (c->only_a || c->only_b || c->unpaired)
        fprintf(out,
                "left out: %zu cells of A alone, %zu of B alone; %u replies of one side alone\n",
                c->only_a, c->only_b, c->unpaired);
    uint32_t all = c->equal + c->unequal + c->failed;
    // Rounded down, so that only all of them are 100%.
    fprintf(out, "%u%% equal: %u of %u replies, %u of them by the bits of their logits\n",
            (uint32_t)(100.0 * c->equal / all), c->equal, all, c->by_logits);
}
