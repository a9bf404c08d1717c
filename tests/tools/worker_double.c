/* worker_double: the worker process with an engine that computes nothing, for tests of everything around the engine.
 *
 *   worker_double WHAT [flags of railyard-worker]
 * WHAT stands where the model's folder does; commas in it lead to how the engine behaves:
 *   load_ms=N   loads that long          fail=load      cannot be loaded (ST_CORRUPT)
 *   round_ms=N  a round takes that long  fail=room      does not fit (ST_NOMEM)
 *   chunk=N     rows filled a round      device=N       the device fails in round N
 *   kv=N        tokens of KV in all      streams=N context=N
 * A stream's id at index i is a function of the sum of its prompt and i, never a stop id, so a replay gives the same.
 * It ends with its parent, however it was started. */
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "worker/cmd.h"
#include "worker/engine/engine.h"
#include "worker/options.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { VOCAB = 256, STREAMS = 64 };

struct double_stream {
    bool used;
    uint64_t handle, tag;
    uint32_t sum, prompt_count, rows, filled, generated, told, max_tokens, kv;
    int32_t top_logprobs;
};

struct engine {
    struct engine_info info;
    uint32_t round_ms, chunk, kv, kv_used, device;
    uint64_t rounds, handles;
    struct double_stream streams[STREAMS];
    struct engine_event events[STREAMS];
    uint32_t ids[STREAMS];
    float logprobs[STREAMS];
    struct sample_logprob top[STREAMS][ENGINE_TOP_LOGPROBS_MAX];
};

static uint32_t word(const char *what, const char *key, uint32_t none) {
    char k[32];
    snprintf(k, sizeof k, ",%s=", key);
    const char *at = strstr(what, k);
    return at ? (uint32_t)strtoul(at + strlen(k), NULL, 10) : none;
}

int engine_new(struct engine **ret, const struct engine_config *c, struct err *e) {
    const char *what = c->model_dir;
    uint32_t load_ms = word(what, "load_ms", 0);
    for (uint32_t ms = 0; ms < load_ms; ms += 10) {
        c->on_load(c->on_load_arg, ms, load_ms);
        usleep(10000); // the time is what is being played
    }
    if (strstr(what, ",fail=load"))
        return err_set(e, ST_CORRUPT, "a.safetensors: tensor w: wanted [2], found [3]");
    if (strstr(what, ",fail=room"))
        return err_set(e, ST_NOMEM, "wanted 9 GiB, found 1 GiB; the largest context is 12");
    struct engine *eng = mem_calloc(1, sizeof *eng);
    eng->round_ms = word(what, "round_ms", 0);
    eng->chunk = word(what, "chunk", 1024);
    eng->kv = word(what, "kv", 1 << 20);
    eng->device = word(what, "device", 0);
    eng->info = (struct engine_info){.model_type = "double",
                                     .experts_rule = "",
                                     .device = "none",
                                     .variant = "none",
                                     .vocab_size = VOCAB,
                                     .context_max = word(what, "context", 1024),
                                     .streams_max = word(what, "streams", 8),
                                     .kv_blocks_total = eng->kv,
                                     .kv_block_tokens = 1,
                                     .checkpoint_digest = "0123456789abcdef0123456789abcdef",
                                     .kv_rule = "kv=none",
                                     .rope_rule = "rope=none"};
    *ret = eng;
    return ST_OK;
}

void engine_free(struct engine *eng) {
    free(eng);
}

const struct engine_info *engine_info(struct engine *eng) {
    eng->info.kv_blocks_used = eng->kv_used;
    return &eng->info;
}

int engine_set_vocab(struct engine *eng, const struct engine_range *used, uint32_t used_count,
                     const uint32_t *stop_ids, uint32_t stop_count, struct err *e) {
    for (uint32_t i = 0; i < used_count; i++)
        if (used[i].first + used[i].count > VOCAB)
            return err_set(e, ST_INVAL, "used: wanted ids below %d", VOCAB);
    return ST_OK;
}

int engine_submit(struct engine *eng, const struct engine_request *r, uint64_t *ret_handle,
                  struct err *e) {
    uint32_t i = 0, kv = r->prompt_count + r->max_tokens;
    if (r->prompt_count + r->given_count >= eng->info.context_max)
        return err_set(e, ST_INVAL, "prompt: too long");
    if (r->sampling.top_k == 77) return err_set(e, ST_INVAL, "top_k: not 77");
    while (i < eng->info.streams_max && eng->streams[i].used) i++;
    if (i == eng->info.streams_max) return err_set(e, ST_FULL, "no slot");
    if (eng->kv_used + kv > eng->kv) return err_set(e, ST_FULL, "no KV");
    struct double_stream *s = &eng->streams[i];
    *s = (struct double_stream){.used = true,
                                .handle = ++eng->handles,
                                .tag = r->tag,
                                .prompt_count = r->prompt_count,
                                .rows = r->prompt_count + r->given_count,
                                .generated = r->given_count,
                                .told = r->given_count,
                                .max_tokens = r->max_tokens,
                                .kv = kv,
                                .top_logprobs = r->top_logprobs};
    for (uint32_t k = 0; k < r->prompt_count; k++) s->sum += r->prompt[k];
    eng->kv_used += kv;
    *ret_handle = s->handle;
    return ST_OK;
}

static void release(struct engine *eng, struct double_stream *s) {
    s->used = false;
    eng->kv_used -= s->kv;
}

uint64_t engine_drafts(struct engine *eng, uint64_t handle,
                       uint64_t ret_drafted[ENGINE_DRAFT_KINDS],
                       uint64_t ret_accepted[ENGINE_DRAFT_KINDS]) {
    (void)eng, (void)handle;
    memset(ret_drafted, 0, ENGINE_DRAFT_KINDS * sizeof *ret_drafted);
    memset(ret_accepted, 0, ENGINE_DRAFT_KINDS * sizeof *ret_accepted);
    return 0;
}

bool engine_cancel(struct engine *eng, uint64_t handle) {
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct double_stream *s = &eng->streams[i];
        if (s->used && s->handle == handle) return release(eng, s), true;
    }
    return false;
}

bool engine_idle(struct engine *eng) {
    for (uint32_t i = 0; i < STREAMS; i++)
        if (eng->streams[i].used) return false;
    return true;
}

static void advance(struct engine *eng, struct double_stream *s, uint32_t i,
                    struct engine_event *ev) {
    *ev =
        (struct engine_event){.handle = s->handle, .tag = s->tag, .first = s->told, .stop_id = -1};
    if (s->filled < s->rows) {
        uint32_t left = s->rows - s->filled;
        s->filled += left < eng->chunk ? left : eng->chunk;
    } else {
        eng->ids[i] = (s->sum + 7 * s->generated) % 200;
        eng->logprobs[i] = -0.5f;
        for (int32_t k = 0; k < s->top_logprobs; k++)
            eng->top[i][k] =
                (struct sample_logprob){eng->ids[i] + (uint32_t)k, k ? -INFINITY : -0.5f};
        s->generated++;
        ev->ids = &eng->ids[i];
        ev->ids_count = 1;
        if (s->top_logprobs >= 0) ev->logprobs = &eng->logprobs[i], ev->top = eng->top[i];
    }
    s->told = s->generated;
    ev->filled = s->filled;
    if (s->generated < s->max_tokens) return;
    ev->finish = ENGINE_FINISH_LENGTH;
    ev->prompt_count = s->prompt_count;
    ev->completion_count = s->generated;
    ev->rounds = eng->rounds;
    release(eng, s);
}

int engine_step(struct engine *eng, struct engine_round *ret, struct err *e) {
    uint32_t n = 0;
    if (++eng->rounds == eng->device) return err_set(e, ST_DEVICE, "the device fell off");
    usleep(eng->round_ms * 1000); // the time is what is being played
    for (uint32_t i = 0; i < STREAMS; i++)
        if (eng->streams[i].used) advance(eng, &eng->streams[i], n, &eng->events[n]), n++;
    *ret = (struct engine_round){eng->rounds, n, 1000 * eng->round_ms + 1, eng->events, n};
    return ST_OK;
}

int main(int argc, char **argv) {
    struct options o;
    struct err e = {0};
    enum log_level level = LOG_LEVEL_INFO;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (options_init(&o, argc - 1, argv + 1, &e) || o.args_count != 1) {
        fprintf(stderr, "worker_double: wanted WHAT and flags: %s\n", e.msg);
        return 2;
    }
    log_level_parse(o.log_level, &level);
    log_init("worker_double", level);
    o.model = o.args[0];
    int code = cmd_worker(&o);
    options_fini(&o);
    return code;
}
