/* cmd_plan: inspect --plan: what a checkpoint would take of a GPU, without one. */
#include "common/err.h"
#include "proto/exit_code.h"
#include "worker/cmd.h"
#include "worker/engine/plan.h"
#include "worker/options.h"

#include <stdio.h>

static double gib(uint64_t bytes) {
    return (double)bytes / (1 << 30);
}

static void print_plan(const struct plan *p) {
    printf("memory      %.3f GiB of %.3f\n", gib(p->arena_bytes), gib(p->room));
    for (uint32_t i = 0; i < p->regions_count; i++)
        printf("  %-24s %9.3f GiB\n", p->regions[i].name, gib(p->regions[i].bytes));
    if (p->graphs_bytes)
        printf("  %-24s %9.3f GiB, about, beside it\n", "graphs of rounds", gib(p->graphs_bytes));
    printf("embedding   %.3f GiB, %s: %s\n", gib(p->embedding_bytes),
           p->embedding_on_host ? "in pinned host memory" : "on the card", p->embedding_why);
    uint64_t rows = p->embedding_on_host ? p->embedding_bytes : 0;
    printf("pinned      %.3f GiB of host memory: staging %.3f, embedding %.3f\n",
           gib(p->staging_bytes + rows), gib(p->staging_bytes), gib(rows));
    printf("scratch     mixers and MLP over one another save %.3f GiB (%llu bytes)\n",
           gib(p->union_saves), (unsigned long long)p->union_saves);
    printf(
        "serves      %u streams, contexts up to %u, %u of them whole; %u KV blocks of %u tokens\n",
        p->streams_max, p->context_max, p->streams_whole, p->pages, p->page_tokens);
}

int cmd_plan(const struct options *o) {
    struct engine_config config;
    struct plan plan;
    struct err e = {0};
    options_engine(o, &config);
    struct plan_ask ask = {.config = &config,
                           .room = (uint64_t)(o->room_gib * (1 << 30)),
                           .sm = (uint32_t)o->plan_sm,
                           .unified = o->plan_unified};
    int st = plan_make(&plan, &ask, &e);
    if (!st && !o->check) print_plan(&plan);
    if (!st) return EXIT_CODE_OK;
    printf("%s%s\n", o->check ? "" : "wrong       ", e.msg);
    return st == ST_NOMEM ? EXIT_CODE_MEMORY : st == ST_INVAL ? EXIT_CODE_USAGE : EXIT_CODE_MODEL;
}
