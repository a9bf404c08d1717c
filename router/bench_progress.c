/* bench_progress: see bench_progress.h. */
#include "router/bench_progress.h"
#include "router/bench_ask.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { TICK_MS = 200 };

void bench_progress_init(struct bench_progress *p, FILE *out, uint32_t waves) {
    *p = (struct bench_progress){.out = out, .live = out && isatty(fileno(out)), .waves = waves};
}

static void on_tick(uv_timer_t *t) {
    struct bench_progress *p = t->data;
    uint32_t over = 0, ids = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        over += p->asks[i].over;
        ids += p->asks[i].arrivals.ids;
    }
    fprintf(p->out, "\r\033[K[%u/%u] %s: %u of %u streams over, %u tokens", p->waves_over + 1,
            p->waves, p->name, over, p->count, ids);
    fflush(p->out);
    if (over == p->count) uv_close((uv_handle_t *)t, NULL); // the loop may end
}

void bench_progress_wave(struct bench_progress *p, uv_loop_t *loop, const char *name,
                         const struct bench_ask *asks, uint32_t count) {
    if (!p->live) return;
    p->name = name;
    p->asks = asks;
    p->count = count;
    uv_timer_init(loop, &p->timer);
    p->timer.data = p;
    uv_timer_start(&p->timer, on_tick, 0, TICK_MS);
    uv_unref((uv_handle_t *)&p->timer);
}

void bench_progress_wave_over(struct bench_progress *p) {
    p->waves_over++;
    if (!p->live) return;
    if (!uv_is_closing((uv_handle_t *)&p->timer)) uv_close((uv_handle_t *)&p->timer, NULL);
    uv_run(p->timer.loop, UV_RUN_DEFAULT);
}

void bench_progress_cell(struct bench_progress *p, const struct bench_cell *c) {
    if (!p->out) return;
    fprintf(p->out, "%s[%u/%u] %s: %u equal, %u unequal, %u failed, %u first",
            p->live ? "\r\033[K" : "", p->waves_over, p->waves, c->name, c->equal, c->unequal,
            c->failed, c->first);
    if (!isnan(c->figures.total_tokens_per_s))
        fprintf(p->out, ", %.1f tok/s", c->figures.total_tokens_per_s);
    fputc('\n', p->out);
    fflush(p->out);
}
