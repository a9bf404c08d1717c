/* bench_parts: see bench_parts.h. */
#include "worker/bench_parts.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/strbuf.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const struct part {
    const char *name;
    int (*run)(struct bench *b, struct err *e);
    enum { ANY, GPU, OWN_ENGINES } needs;
} parts[] = {
    {"shapes", bench_shapes, GPU},
    {"operations", bench_operations, GPU},
    {"rounds", bench_rounds, ANY},
    {"prompts", bench_prompts, ANY},
    {"crowd", bench_crowd, ANY},
    {"drafts", bench_drafts, ANY},
    {"blocks", bench_blocks, GPU},
    {"long", bench_long, ANY},
    {"scratch", bench_scratch, OWN_ENGINES},
    {"load", bench_load, OWN_ENGINES},
    {"load-cold", bench_load_cold, OWN_ENGINES},
};
enum { PARTS = sizeof parts / sizeof *parts };

// The part that the list begins with, or NULL; *list goes on behind it.
static const struct part *next_part(const char **list) {
    size_t len = strcspn(*list, ",");
    for (size_t i = 0; i < PARTS; i++)
        if (strlen(parts[i].name) == len && !memcmp(parts[i].name, *list, len)) {
            *list += len + ((*list)[len] == ',');
            return &parts[i];
        }
    return NULL;
}

int bench_check_parts(const char *list, struct err *e) {
    struct strbuf names = {0};
    while (*list && next_part(&list))
        ;
    if (!*list) return ST_OK;
    for (size_t i = 0; i < PARTS; i++) strbuf_printf(&names, "%s%s", i ? "," : "", parts[i].name);
    err_set(e, ST_INVAL, "measure: wanted a list of %s, found '%.*s'", strbuf_str(&names),
            (int)strcspn(list, ","), list);
    strbuf_fini(&names);
    return ST_INVAL;
}

// The engine that a part needs.
static int prepare(struct bench *b, const struct part *p, struct err *e) {
    if (p->needs == OWN_ENGINES) {
        engine_free(b->eng);
        b->eng = NULL;
        return ST_OK;
    }
    int st = b->eng ? ST_OK : engine_new(&b->eng, &b->config, e);
    if (st || p->needs == ANY || strcmp(engine_info(b->eng)->device, "cpu")) return st;
    return err_set(e, ST_INVAL, "%s: %s: wanted a GPU, found 'cpu'", b->setting, p->name);
}

int bench_measure(struct bench *b, const char *list, struct err *e) {
    int st = bench_check_parts(list, e);
    while (!st && *list) {
        const struct part *p = next_part(&list);
        st = prepare(b, p, e);
        if (!st) st = p->run(b, e);
    }
    return st;
}

int bench_submit(struct engine *eng, const struct bench_ask *a, uint64_t *ret_handle,
                 struct err *e) {
    uint32_t vocab = engine_info(eng)->vocab_size;
    uint32_t *ids = mem_alloc(a->prompt * sizeof *ids);
    for (uint32_t i = 0; i < a->prompt; i++) ids[i] = (i * 31 + a->salt * 17 + 5) % vocab;
    struct engine_request r = {.prompt = ids,
                               .prompt_count = a->prompt,
                               .sampling = {.top_p = 1, .repetition = 1},
                               .max_tokens = a->tokens,
                               .ignore_eos = true,
                               .top_logprobs = -1,
                               .tag = a->tag};
    int st = engine_submit(eng, &r, ret_handle, e);
    free(ids);
    return st;
}

int bench_step(struct engine *eng, struct engine_round *ret, double *ret_ms, struct err *e) {
    uint64_t before = mono_ns();
    int st = engine_step(eng, ret, e);
    *ret_ms = (double)(mono_ns() - before) / 1e6;
    return st;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *v, uint32_t count) {
    qsort(v, count, sizeof *v, by_value);
    return v[count / 2];
}

void bench_put(const struct bench *b, const char *fmt, ...) {
    va_list ap;
    if (!b->json) return;
    va_start(ap, fmt);
    vfprintf(b->json, fmt, ap);
    va_end(ap);
    fputc('\n', b->json);
    fflush(b->json); // what has been measured stays, whatever ends the program
}
