/* bench_stats: see bench_stats.h. */
#include "router/bench_stats.h"
#include "common/mem.h"

#include <math.h>
#include <stdlib.h>

void bench_list_fini(struct bench_list *l) {
    free(l->v);
    *l = (struct bench_list){0};
}

void bench_list_add(struct bench_list *l, double x) {
    if (isnan(x)) return;
    if (l->count == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 64;
        l->v = mem_realloc_array(l->v, l->cap, sizeof *l->v);
    }
    l->v[l->count++] = x;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_list_median(struct bench_list *l) {
    if (!l->count) return NAN;
    qsort(l->v, l->count, sizeof *l->v, by_value);
    size_t half = l->count / 2;
    return l->count % 2 ? l->v[half] : (l->v[half - 1] + l->v[half]) / 2;
}

void bench_arrivals_add(struct bench_arrivals *a, uint64_t now_ns, uint32_t ids, uint32_t rounds,
                        struct bench_list *gaps) {
    if (!a->rounds) {
        a->first_ns = now_ns;
        a->first_ids = ids;
    } else {
        double gap_ms = (double)(now_ns - a->last_ns) / 1e6 / rounds;
        for (uint32_t i = 0; gaps && i < rounds; i++) bench_list_add(gaps, gap_ms);
    }
    a->last_ns = now_ns;
    a->ids += ids;
    a->rounds += rounds;
}

void bench_rate_add(struct bench_rate *sum, struct bench_rate r) {
    sum->ids += r.ids;
    sum->seconds += r.seconds;
}

double bench_rate_per_s(struct bench_rate r) {
    return r.seconds > 0 ? r.ids / r.seconds : NAN;
}

// All ids, the stream that began first, and when the last id came; NULL when none came.
static const struct bench_arrivals *scan(const struct bench_arrivals *v, size_t count,
                                         double *ret_ids, uint64_t *ret_last_ns) {
    const struct bench_arrivals *first = NULL;
    *ret_ids = 0;
    *ret_last_ns = 0;
    for (size_t i = 0; i < count; i++) {
        if (!v[i].rounds) continue;
        if (!first || v[i].first_ns < first->first_ns) first = &v[i];
        if (v[i].last_ns > *ret_last_ns) *ret_last_ns = v[i].last_ns;
        *ret_ids += v[i].ids;
    }
    return first;
}

struct bench_rate bench_arrivals_rate(const struct bench_arrivals *v, size_t count) {
    double ids;
    uint64_t last_ns;
    const struct bench_arrivals *first = scan(v, count, &ids, &last_ns);
    if (!first) return (struct bench_rate){0, 0};
    return (struct bench_rate){ids - first->first_ids, (double)(last_ns - first->first_ns) / 1e9};
}

struct bench_rate bench_arrivals_wall(const struct bench_arrivals *v, size_t count,
                                      uint64_t sent_ns) {
    double ids;
    uint64_t last_ns;
    if (!scan(v, count, &ids, &last_ns)) return (struct bench_rate){0, 0};
    return (struct bench_rate){ids, (double)(last_ns - sent_ns) / 1e9};
}
