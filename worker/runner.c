/* runner: see runner.h. Commands wait in a list under the lock; the engine thread takes them between rounds. */
#include "worker/runner.h"
#include "common/arena.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mono.h"
#include "worker/engine/engine.h"
#include "worker/round_frames.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LOAD_TOLD_MS = 1000 }; // between two lines about loading

enum command_kind { COMMAND_VOCAB, COMMAND_SUBMIT, COMMAND_CANCEL };

struct command {
    struct command *next;
    enum command_kind kind;
    uint32_t generation;
    struct arena arena; // what the frame points to
    union {
        struct frame_vocab vocab;
        struct frame_submit submit;
        struct frame_cancel cancel;
    };
};

struct runner {
    pthread_t thread;
    struct engine_config config;
    int fd; // eventfd

    pthread_mutex_t lock; // guards all down to out
    pthread_cond_t wake;  // a command, a new session, an end, or room in out
    struct command *first, *last;
    uint32_t submits; // of the present generation: handed over and not yet in status
    uint32_t taken;   // of them, those that the engine thread has in its hands
    uint32_t generation;
    bool ending;
    struct runner_status status;
    struct engine_info info; // as of the end of loading: its strings live as long as the engine
    struct strbuf out;       // frames of `generation`: u32 length, bytes, ...

    uint64_t load_told_ms;     // engine thread: when the last line about loading was written
    _Atomic uint32_t load_ppm; // parts of a million; from engine_new's callback

    // The engine thread's alone.
    struct engine *eng;
    struct round_frames frames;
    uint32_t session; // the generation that the running streams belong to
};

static void ring(int fd) {
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    (void)n; // full means that it rings already
}

/* Commands. */

static void push(struct runner *r, struct command *c) {
    pthread_mutex_lock(&r->lock);
    c->generation = r->generation;
    if (r->last)
        r->last->next = c;
    else
        r->first = c;
    r->last = c;
    r->submits += c->kind == COMMAND_SUBMIT;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
}

static void command_free(struct command *c) {
    arena_fini(&c->arena);
    free(c);
}

static struct frame_ids copy_ids(struct arena *a, struct frame_ids l) {
    l.le = arena_copy(a, l.le, 4 * (size_t)l.count);
    return l;
}

void runner_set_vocab(struct runner *r, const struct frame_vocab *v) {
    struct command *c = mem_calloc(1, sizeof *c);
    c->kind = COMMAND_VOCAB;
    c->vocab = *v;
    c->vocab.used = arena_copy(&c->arena, v->used, v->used_count * sizeof *v->used);
    c->vocab.stop = copy_ids(&c->arena, v->stop);
    c->vocab.special = (struct frame_ids){0};
    push(r, c);
}

void runner_submit(struct runner *r, const struct frame_submit *s) {
    struct command *c = mem_calloc(1, sizeof *c);
    struct arena *a = &c->arena;
    uint32_t bias = s->sampling.bias_count;
    c->kind = COMMAND_SUBMIT;
    c->submit = *s;
    c->submit.request_id = arena_strdup(a, s->request_id);
    c->submit.trace = "";
    c->submit.prompt = copy_ids(a, s->prompt);
    c->submit.given = copy_ids(a, s->given);
    c->submit.stop = copy_ids(a, s->stop);
    c->submit.sampling.bias_ids = arena_copy(a, s->sampling.bias_ids, bias * sizeof(uint32_t));
    c->submit.sampling.bias = arena_copy(a, s->sampling.bias, bias * sizeof(float));
    push(r, c);
}

void runner_cancel(struct runner *r, const struct frame_cancel *s) {
    struct command *c = mem_calloc(1, sizeof *c);
    c->kind = COMMAND_CANCEL;
    c->cancel = *s;
    c->cancel.streams = arena_copy(&c->arena, s->streams, s->count * sizeof *s->streams);
    push(r, c);
}

static struct command *take_commands(struct runner *r) { // under the lock
    struct command *all = r->first;
    r->first = r->last = NULL;
    return all;
}

/* The engine thread. */

static void fail(struct runner *r, const struct err *e) {
    pthread_mutex_lock(&r->lock);
    r->status.state = RUNNER_FAILED;
    r->status.st = e->st;
    snprintf(r->status.reason, sizeof r->status.reason, "%.*s", (int)sizeof r->status.reason - 1,
             e->msg);
    r->status.ready = false;
    r->status.room = 0;
    r->status.changes++;
    pthread_mutex_unlock(&r->lock);
    ring(r->fd);
}

static void on_load(void *arg, uint64_t done_bytes, uint64_t total_bytes) {
    struct runner *r = arg;
    uint32_t ppm = total_bytes ? (uint32_t)((double)done_bytes / (double)total_bytes * 1e6) : 0;
    atomic_store_explicit(&r->load_ppm, ppm < 1000000 ? ppm : 1000000, memory_order_relaxed);
    uint64_t now = mono_ms();
    if (!r->load_told_ms) r->load_told_ms = now;
    if (now - r->load_told_ms < LOAD_TOLD_MS) return;
    r->load_told_ms = now;
    log_info("loading", "percent=%u gib=%.2f of=%.2f", ppm / 10000, (double)done_bytes / (1 << 30),
             (double)total_bytes / (1 << 30));
}

// What the router should know of the engine and its streams. changed: at once.
static void publish(struct runner *r, bool changed) {
    const struct engine_info *info = engine_info(r->eng);
    const struct round_frames *f = &r->frames;
    pthread_mutex_lock(&r->lock);
    struct runner_status *s = &r->status;
    s->ready = f->has_vocab;
    s->progress = f->progress;
    s->rounds = f->rounds;
    s->tokens = f->tokens;
    s->prompt_tokens = f->prompt_tokens;
    s->streams_running = f->count;
    s->room =
        f->has_vocab && !f->full && info->streams_max > f->count ? info->streams_max - f->count : 0;
    s->kv_blocks_used = info->kv_blocks_used;
    s->fill_tokens_per_s = f->fill_tokens_per_s;
    s->round_ms = f->round_ms;
    s->changes += changed;
    if (r->generation == r->session) r->submits -= r->taken;
    r->taken = 0;
    pthread_mutex_unlock(&r->lock);
    if (changed) ring(r->fd);
}

static int load(struct runner *r, struct err *e) {
    struct engine_config c = r->config;
    c.on_load = on_load;
    c.on_load_arg = r;
    int st = engine_new(&r->eng, &c, e);
    if (st) return st;
    const struct engine_info *info = engine_info(r->eng);
    round_frames_init(&r->frames, r->eng);
    pthread_mutex_lock(&r->lock);
    struct runner_status *s = &r->status;
    s->state = RUNNER_LOADED;
    r->info = *info;
    s->streams_max = info->streams_max;
    s->context_max = info->context_max;
    s->vocab_size = info->vocab_size;
    s->kv_blocks_total = info->kv_blocks_total;
    s->kv_block_tokens = info->kv_block_tokens;
    s->progress++;
    pthread_mutex_unlock(&r->lock);
    publish(r, true);
    return ST_OK;
}

static int run_command(struct runner *r, struct command *c, struct err *e) {
    struct round_frames *f = &r->frames;
    if (c->generation != r->session) return ST_OK; // of a session that is over
    switch (c->kind) {
    case COMMAND_VOCAB: return round_frames_vocab(f, &c->vocab, e);
    case COMMAND_SUBMIT: round_frames_submit(f, &c->submit); break;
    case COMMAND_CANCEL: round_frames_cancel(f, &c->cancel); break;
    }
    return ST_OK;
}

static int run_commands(struct runner *r, struct command *all, struct err *e) {
    int st = ST_OK;
    for (struct command *next; all; all = next) {
        next = all->next;
        if (!st) st = run_command(r, all, e);
        command_free(all);
    }
    return st;
}

// Adds what was made to out, unless its session is over. Waits while the link has too much to take.
static void deliver(struct runner *r) {
    struct strbuf *made = &r->frames.out;
    if (made->len == 0) return;
    pthread_mutex_lock(&r->lock);
    while (r->out.len > RUNNER_OUT_BYTES_MAX && r->generation == r->session && !r->ending)
        pthread_cond_wait(&r->wake, &r->lock);
    if (r->generation == r->session) strbuf_add(&r->out, made->p, made->len);
    pthread_mutex_unlock(&r->lock);
    strbuf_reset(made);
    ring(r->fd);
}

// Sleeps until there is something to do; *ret_commands may be empty, *ret_session is the present generation.
// False: the end.
static bool wait_for_work(struct runner *r, struct command **ret_commands, uint32_t *ret_session) {
    pthread_mutex_lock(&r->lock);
    while (!r->ending && !r->first && r->generation == r->session && engine_idle(r->eng))
        pthread_cond_wait(&r->wake, &r->lock);
    bool go_on = !r->ending;
    if (go_on) *ret_commands = take_commands(r); // else they are runner_free's
    r->taken = r->submits;
    *ret_session = r->generation;
    pthread_mutex_unlock(&r->lock);
    return go_on;
}

static int turn(struct runner *r, struct command *commands, uint32_t session, struct err *e) {
    struct round_frames *f = &r->frames;
    bool changed = commands != NULL || session != r->session;
    if (session != r->session) {
        round_frames_drop_all(f);
        r->session = f->generation = session;
    }
    int st = run_commands(r, commands, e);
    if (st) return st;
    if (!engine_idle(r->eng)) st = round_frames_step(f, &changed, e);
    if (st) return st;
    deliver(r); // first: who reads that no stream runs finds the last DONE made
    publish(r, changed);
    return ST_OK;
}

static void *run(void *arg) {
    struct runner *r = arg;
    struct command *commands;
    struct err e = {0};
    uint32_t session;
    int st = load(r, &e);
    while (!st && wait_for_work(r, &commands, &session)) {
        st = turn(r, commands, session, &e);
        commands = NULL;
    }
    if (st) fail(r, &e);
    return NULL;
}

/* The link's side. */

struct runner *runner_new(const struct engine_config *config) {
    struct runner *r = mem_calloc(1, sizeof *r);
    r->config = *config;
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert(r->fd >= 0); // a process that has just begun has descriptors left
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
    int rc = pthread_create(&r->thread, NULL, run, r);
    assert(rc == 0);
    return r;
}

void runner_free(struct runner *r) {
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->ending = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    for (struct command *c = take_commands(r), *next; c; c = next) {
        next = c->next;
        command_free(c);
    }
    round_frames_fini(&r->frames);
    engine_free(r->eng);
    strbuf_fini(&r->out);
    close(r->fd);
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

int runner_fd(const struct runner *r) {
    return r->fd;
}

void runner_status(struct runner *r, struct runner_status *ret) {
    uint64_t count;
    ssize_t n = read(r->fd, &count, sizeof count);
    (void)n; // nothing there is fine
    pthread_mutex_lock(&r->lock);
    *ret = r->status;
    ret->streams_running += r->submits;
    ret->room = ret->room > r->submits ? ret->room - r->submits : 0;
    pthread_mutex_unlock(&r->lock);
    double loaded = atomic_load_explicit(&r->load_ppm, memory_order_relaxed) / 1e6;
    ret->load_fraction = ret->state == RUNNER_LOADED ? 1 : loaded;
    if (ret->state == RUNNER_LOADING) ret->progress = (uint64_t)(loaded * 1e6);
}

const struct engine_info *runner_info(struct runner *r) {
    pthread_mutex_lock(&r->lock);
    bool loaded = r->status.state == RUNNER_LOADED;
    pthread_mutex_unlock(&r->lock);
    return loaded ? &r->info : NULL; // not written again
}

void runner_begin_session(struct runner *r, uint32_t generation) {
    pthread_mutex_lock(&r->lock);
    r->generation = generation;
    r->submits = r->taken = 0;
    strbuf_reset(&r->out);
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
}

void runner_take(struct runner *r, struct strbuf *ret) {
    pthread_mutex_lock(&r->lock);
    if (r->out.len) strbuf_add(ret, r->out.p, r->out.len);
    strbuf_reset(&r->out);
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
}

bool runner_next_frame(const struct strbuf *frames, size_t *at, const void **ret, size_t *ret_len) {
    uint32_t len;
    if (*at >= frames->len) return false;
    memcpy(&len, frames->p + *at, sizeof len);
    *ret = frames->p + *at + sizeof len;
    *ret_len = len;
    *at += sizeof len + len;
    return true;
}
