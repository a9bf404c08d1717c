/* bench_table: see bench_table.h. */
#include "router/bench_table.h"
#include "router/bench.h"
#include "router/bench_stats.h"

#include <math.h>

static void print_head(const struct bench_receipt *r, FILE *out) {
    fprintf(out, "server      %s, build %s\n", r->url, *r->build ? r->build : "unknown");
    fprintf(out, "model       %s, checkpoint %.16s, %s\n", *r->model ? r->model : "unknown",
            *r->checkpoint ? r->checkpoint : "unknown", *r->device ? r->device : "device unknown");
    fprintf(out, "run         %s, %u tokens, %u reps, seed %llu, prompts %.16s%s%.16s\n\n", r->date,
            r->tokens, r->reps, (unsigned long long)r->seed, r->prompts_sha256,
            *r->cold_sha256 ? ", cold prompts " : "", r->cold_sha256);
}

// A number of a column, or a dash where nothing was measured.
static void print_number(FILE *out, int width, int digits, double x) {
    if (isnan(x))
        fprintf(out, " %*s", width, "-");
    else
        fprintf(out, " %*.*f", width, digits, x);
}

static void print_cells(const struct bench_receipt *r, FILE *out) {
    fprintf(out, "%-22s %7s %7s %6s %5s %9s %9s %9s %9s %9s %9s\n", "cell", "equal", "unequal",
            "failed", "first", "first ms", "stream/s", "total/s", "wall/s", "tok/round", "gap ms");
    for (size_t i = 0; i < r->cell_count; i++) {
        const struct bench_cell *c = &r->cells[i];
        if (c->kind == BENCH_COLD) continue;
        fprintf(out, "%-22s %7u %7u %6u %5u", c->name, c->equal, c->unequal, c->failed, c->first);
        print_number(out, 9, 1, c->figures.first_token_ms);
        print_number(out, 9, 1, c->figures.stream_tokens_per_s);
        print_number(out, 9, 1, c->figures.total_tokens_per_s);
        print_number(out, 9, 1, c->figures.wall_tokens_per_s);
        print_number(out, 9, 2, c->figures.tokens_per_round);
        print_number(out, 9, 2, c->figures.round_gap_ms);
        fputc('\n', out);
    }
}

static uint32_t prompt_tokens(const struct bench_cell *c) {
    for (size_t i = 0; i < c->reply_count; i++)
        if (!c->replies[i].failed) return c->replies[i].prompt_tokens;
    return 0;
}

static void print_cold(const struct bench_receipt *r, FILE *out) {
    if (!*r->cold_sha256) return;
    fprintf(out, "\n%-22s %7s %7s %6s %5s %9s %9s %9s %9s\n", "cold prompt", "equal", "unequal",
            "failed", "first", "tokens", "first ms", "fill ms", "fill/s");
    for (size_t i = 0; i < r->cell_count; i++) {
        const struct bench_cell *c = &r->cells[i];
        if (c->kind != BENCH_COLD) continue;
        uint32_t n = prompt_tokens(c);
        fprintf(out, "%-22s %7u %7u %6u %5u %9u", c->name, c->equal, c->unequal, c->failed,
                c->first, n);
        print_number(out, 9, 1, c->figures.first_token_ms);
        print_number(out, 9, 1, c->figures.fill_ms);
        print_number(out, 9, 1, c->figures.fill_ms > 0 ? n / (c->figures.fill_ms / 1e3) : NAN);
        fputc('\n', out);
    }
}

// The first reply of a cell that failed, or that differs.
static const struct bench_reply *first_bad(const struct bench_cell *c, bool failed) {
    for (size_t i = 0; i < c->reply_count; i++)
        if (failed ? c->replies[i].failed : c->replies[i].unequal) return &c->replies[i];
    return NULL;
}

static void print_bad(const struct bench_cell *c, bool failed, FILE *out) {
    const struct bench_reply *r = first_bad(c, failed);
    if (!r) return;
    fprintf(out, "%s %s: %u of %zu, first stream %u rep %u: %s\n", failed ? "FAILED" : "UNEQUAL",
            c->name, failed ? c->failed : c->unequal, c->reply_count, r->stream, r->rep, r->why);
}

static void print_compared(const struct bench_receipt *r, FILE *out) {
    uint32_t n[BENCH_CHECK_COUNT] = {0}, all = 0, by_logits = 0;
    for (size_t i = 0; i < r->cell_count; i++) {
        const struct bench_cell *c = &r->cells[i];
        for (int k = 0; k < BENCH_CHECK_COUNT; k++) {
            n[k] += c->check_equal[k] + c->check_unequal[k];
            all += c->check_equal[k] + c->check_unequal[k];
        }
        for (size_t k = 0; k < c->reply_count; k++) by_logits += c->replies[k].by_logits;
    }
    fprintf(out, "\ncompared: %u with undrafted, %u with alone, %u with the first run; %u replies ",
            n[BENCH_CHECK_SERIAL], n[BENCH_CHECK_ALONE], n[BENCH_CHECK_REPEAT], by_logits);
    fprintf(out, "by the bits of their logits\n");
    if (!all)
        fprintf(out, "nothing was compared: that needs --reps above 1, --alone or --serial\n");
}

void bench_table_print(const struct bench_receipt *r, FILE *out) {
    uint32_t equal = 0, unequal = 0, failed = 0, first = 0;
    print_head(r, out);
    print_cells(r, out);
    print_cold(r, out);
    print_compared(r, out);
    for (size_t i = 0; i < r->cell_count; i++) {
        equal += r->cells[i].equal;
        unequal += r->cells[i].unequal;
        failed += r->cells[i].failed;
        first += r->cells[i].first;
        print_bad(&r->cells[i], false, out);
        print_bad(&r->cells[i], true, out);
    }
    fprintf(out, "%u equal, %u unequal, %u failed, %u first of their kind\n", equal, unequal,
            failed, first);
}
