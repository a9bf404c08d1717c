/* frame_samples: see frame_samples.h. */
#include "tests/lib/frame_samples.h"
#include "common/arena.h"

#include <assert.h>
#include <float.h>
#include <string.h>

struct maker {
    enum frame_sample_size size;
    struct arena *a;
};

// The number of the sample's size.
static uint64_t pick(const struct maker *m, uint64_t least, uint64_t usual, uint64_t most) {
    return m->size == FRAME_SAMPLE_LEAST ? least : m->size == FRAME_SAMPLE_USUAL ? usual : most;
}

static uint32_t pick32(const struct maker *m, uint32_t usual) {
    return (uint32_t)pick(m, 0, usual, UINT32_MAX);
}

static uint64_t pick64(const struct maker *m, uint64_t usual) {
    return pick(m, 0, usual, UINT64_MAX);
}

static int64_t id_or_none(const struct maker *m, uint32_t usual) {
    return m->size == FRAME_SAMPLE_LEAST ? -1 : (int64_t)pick(m, 0, usual, UINT32_MAX);
}

static double real(const struct maker *m, double usual) {
    return m->size == FRAME_SAMPLE_LEAST   ? -DBL_MAX
           : m->size == FRAME_SAMPLE_USUAL ? usual
                                           : DBL_MAX;
}

static const char *text(const struct maker *m, const char *usual) {
    if (m->size == FRAME_SAMPLE_LEAST) return "";
    if (m->size == FRAME_SAMPLE_USUAL) return usual;
    char *s = arena_alloc(m->a, FRAME_TEXT_BYTES_MAX + 1);
    memset(s, 'x', FRAME_TEXT_BYTES_MAX);
    memcpy(s, "\xf0\x9f\x9a\x82 \xe2\x82\xac", 8); // a locomotive and a euro sign
    s[FRAME_TEXT_BYTES_MAX] = '\0';
    return s;
}

static uint32_t *words(const struct maker *m, uint32_t count) {
    uint32_t *v = arena_alloc(m->a, count * sizeof *v);
    for (uint32_t i = 0; i < count; i++) v[i] = i * 2654435761u;
    return v;
}

static struct frame_ids ids(const struct maker *m, uint32_t least, uint32_t usual, uint32_t most) {
    uint32_t count = (uint32_t)pick(m, least, usual, most);
    return frame_ids_of(words(m, count), count, m->a);
}

static struct frame_stream stream(const struct maker *m) {
    return (struct frame_stream){(uint32_t)pick(m, 1, 17, UINT32_MAX), pick32(m, 3)};
}

static struct frame_fingerprint fingerprint(const struct maker *m) {
    return (struct frame_fingerprint){text(m, "0.1.0 abc"), text(m, "5f3a"), text(m, "cpu"),
                                      text(m, "f32"), text(m, "theta=1e7 dims=64")};
}

static void fill_hello(const struct maker *m, struct frame_hello *h) {
    *h = (struct frame_hello){
        .version_min = pick32(m, 1),
        .version_max = pick32(m, 1),
        .rank = m->size == FRAME_SAMPLE_LEAST ? -1 : (int32_t)pick(m, 0, 2, INT32_MAX),
        .pid = pick32(m, 4711),
        .supervised = m->size != FRAME_SAMPLE_LEAST,
        .token = text(m, "0123456789abcdef"),
        .name = text(m, "box-7"),
        .model = text(m, "demo"),
        .gpu_name = text(m, "NVIDIA H200"),
        .gpu_uuid = text(m, "GPU-1"),
        .gpu_pci = text(m, "0000:01:00.0"),
        .fingerprint = fingerprint(m),
    };
}

static void fill_welcome(const struct maker *m, struct frame_welcome *w) {
    *w = (struct frame_welcome){
        .version = (uint32_t)pick(m, 1, 1, UINT32_MAX),
        .rank = (uint32_t)pick(m, 0, 2, INT32_MAX),
        .generation = (uint32_t)pick(m, 1, 9, UINT32_MAX),
        .router_epoch = pick64(m, 0x1234567890abcdef),
        .path = text(m, "ipc:///run/railyard/w2.9.sock"),
        .progress_s = m->size == FRAME_SAMPLE_MOST ? 1e9 : (double)pick(m, 0, 10, 0),
    };
}

static void fill_vocab(const struct maker *m, struct frame_vocab *v) {
    uint32_t count = (uint32_t)pick(m, 1, 2, FRAME_RANGES_MAX);
    struct frame_range *r = arena_alloc(m->a, count * sizeof *r);
    for (uint32_t i = 0; i < count; i++) r[i] = (struct frame_range){i * 10, i ? 9 : 1};
    *v = (struct frame_vocab){
        .size = (uint32_t)pick(m, 1, 5120, UINT32_MAX),
        .used = r,
        .used_count = count,
        .stop = ids(m, 0, 2, FRAME_STOP_IDS_MAX),
        .special = ids(m, 0, 26, 5000),
        .think_open = id_or_none(m, 5001),
        .think_close = id_or_none(m, 5002),
        .tool_open = id_or_none(m, 5003),
    };
}

static void fill_submit(const struct maker *m, struct frame_submit *s) {
    uint32_t bias = (uint32_t)pick(m, 0, 2, FRAME_BIAS_MAX);
    float *values = arena_alloc(m->a, bias * sizeof *values);
    for (uint32_t i = 0; i < bias; i++) values[i] = i % 2 ? -100 : FLT_MAX;
    *s = (struct frame_submit){
        .stream = stream(m),
        .request_id = text(m, "req_1"),
        .trace = text(m, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        .prompt = ids(m, 1, 40, 200000),
        .given = ids(m, 0, 3, 70000),
        .sampling = {.temperature = real(m, 0.7),
                     .top_k = pick32(m, 20),
                     .top_p = real(m, 0.8),
                     .min_p = real(m, 0.05),
                     .presence = real(m, 1.5),
                     .frequency = real(m, -0.5),
                     .repetition = real(m, 1),
                     .seed = pick64(m, 42),
                     .bias_ids = words(m, bias),
                     .bias = values,
                     .bias_count = bias},
        .max_tokens = (uint32_t)pick(m, 1, 100, UINT32_MAX),
        .min_tokens = pick32(m, 2),
        .stop = ids(m, 0, 1, FRAME_STOP_IDS_MAX),
        .ignore_eos = m->size == FRAME_SAMPLE_MOST,
        .draft = m->size != FRAME_SAMPLE_LEAST,
        .logits_hash = m->size == FRAME_SAMPLE_USUAL,
        .top_logprobs = m->size == FRAME_SAMPLE_LEAST ? -1 : (int32_t)pick(m, 0, 5, 20),
        .think_budget = id_or_none(m, 256),
        .in_thought = m->size == FRAME_SAMPLE_MOST,
        .prefix_salt = pick64(m, 7),
        .priority = m->size == FRAME_SAMPLE_LEAST ? INT32_MIN : (int32_t)pick(m, 0, 0, INT32_MAX),
    };
}

static void fill_cancel(const struct maker *m, struct frame_cancel *c) {
    uint32_t count = (uint32_t)pick(m, 0, 3, FRAME_STREAMS_MAX);
    struct frame_stream *v = arena_alloc(m->a, count * sizeof *v);
    for (uint32_t i = 0; i < count; i++) v[i] = (struct frame_stream){i + 1, i * 7};
    *c = (struct frame_cancel){v, count};
}

static const struct frame_logprobs *logprobs(const struct maker *m, uint32_t count, uint32_t best) {
    struct frame_logprobs *v = arena_calloc(m->a, count, sizeof *v);
    for (uint32_t i = 0; i < count; i++) {
        struct frame_logprob *top = arena_calloc(m->a, best, sizeof *top);
        for (uint32_t k = 0; k < best; k++)
            top[k] = (struct frame_logprob){i + k, -(float)k - 0.5f};
        v[i] = (struct frame_logprobs){-(float)i, top, best};
    }
    return v;
}

static void fill_tokens(const struct maker *m, struct frame_tokens *t) {
    uint32_t count = (uint32_t)pick(m, 0, 3, FRAME_STREAMS_MAX);
    struct frame_tokens_entry *v = arena_calloc(m->a, count, sizeof *v);
    for (uint32_t i = 0; i < count; i++) {
        // Streams still filling, with plain ids, and with the most logprobs there can be.
        uint32_t n = i % 3 == 0 ? 0 : i % 3;
        v[i] = (struct frame_tokens_entry){
            .stream = {i + 1, pick32(m, 2)},
            .first = pick32(m, 12),
            .ids = frame_ids_of(words(m, n), n, m->a),
            .filled = pick32(m, 300),
            .logprobs = i % 3 == 2 ? logprobs(m, n, FRAME_TOP_LOGPROBS_MAX) : NULL,
        };
    }
    *t = (struct frame_tokens){pick64(m, 1000), pick32(m, 21000), pick32(m, 8), v, count};
}

static void fill_done(const struct maker *m, struct frame_done *d) {
    *d = (struct frame_done){
        .stream = stream(m),
        .finish = (enum frame_finish)pick(m, FRAME_FINISH_STOP, FRAME_FINISH_LENGTH,
                                          FRAME_FINISH_CANCELLED),
        .stop_id = id_or_none(m, 5100),
        .prompt_tokens = pick32(m, 40),
        .cached_tokens = pick32(m, 16),
        .completion_tokens = pick32(m, 100),
        .queue_us = pick64(m, 10),
        .prefill_us = pick64(m, 20),
        .decode_us = pick64(m, 30),
        .rounds = pick64(m, 60),
        .logits_hash = pick64(m, 0xfeedfacecafebeef),
        .draft_rounds = pick64(m, 17),
    };
    for (uint32_t i = 0; i < FRAME_DRAFT_KINDS; i++) {
        d->drafted[i] = pick64(m, 10 * (i + 1));
        d->accepted[i] = pick64(m, i + 1);
    }
}

static void fill_fail(const struct maker *m, struct frame_fail *f) {
    *f = (struct frame_fail){
        {pick32(m, 17), pick32(m, 3)},
        (enum frame_fail_code)pick(m, FRAME_FAIL_FULL, FRAME_FAIL_INVALID, FRAME_FAIL_REFUSED),
        text(m, "max_tokens: wanted more than 3, found 2"),
    };
}

static const struct frame_prefix *prefixes(const struct maker *m, uint32_t count) {
    struct frame_prefix *v = arena_alloc(m->a, count * sizeof *v);
    for (uint32_t i = 0; i < count; i++) v[i] = (struct frame_prefix){pick64(m, i), i + 1};
    return v;
}

static const struct frame_memory *memory(const struct maker *m, uint32_t count) {
    struct frame_memory *v = arena_alloc(m->a, count * sizeof *v);
    for (uint32_t i = 0; i < count; i++)
        v[i] = (struct frame_memory){text(m, "kv blocks"), pick64(m, i)};
    return v;
}

static void fill_status(const struct maker *m, struct frame_status *s) {
    uint32_t count = (uint32_t)pick(m, 0, 2, FRAME_PREFIXES_MAX);
    *s = (struct frame_status){
        .state =
            (enum frame_state)pick(m, FRAME_STATE_LOADING, FRAME_STATE_READY, FRAME_STATE_FAILED),
        .reason = text(m, "model.safetensors: tensor x: wanted 2 dimensions, found 3"),
        .load_fraction = m->size == FRAME_SAMPLE_USUAL ? 0.5 : (double)pick(m, 0, 0, 1),
        .progress = pick64(m, 123),
        .streams_running = pick32(m, 2),
        .streams_max = pick32(m, 8),
        .room = pick32(m, 6),
        .queue_requests = pick32(m, 1),
        .queue_tokens = pick64(m, 2000),
        .context_max = pick32(m, 4096),
        .vocab_size = pick32(m, 5120),
        .kv_blocks_used = pick32(m, 10),
        .kv_blocks_total = pick32(m, 64),
        .kv_block_tokens = pick32(m, 256),
        .kept_prefix_tokens = pick64(m, 512),
        .fill_tokens_per_s = m->size == FRAME_SAMPLE_LEAST ? 0 : 1e9,
        .round_ms = m->size == FRAME_SAMPLE_LEAST ? 0 : 3.25,
        .rounds = pick64(m, 1000),
        .tokens = pick64(m, 2000),
        .prompt_tokens = pick64(m, 3000),
        .fingerprint = fingerprint(m),
        .kept = prefixes(m, count),
        .kept_count = count,
        .evicted = prefixes(m, count),
        .evicted_count = count,
        .embedding = text(m, "on the card: there is room"),
        .memory = memory(m, (uint32_t)pick(m, 0, 3, FRAME_MEMORY_MAX)),
        .memory_count = (uint32_t)pick(m, 0, 3, FRAME_MEMORY_MAX),
    };
}

void frame_sample(struct frame *ret, enum frame_type type, enum frame_sample_size size,
                  struct arena *a) {
    struct maker m = {size, a};
    bool lobby = type == FRAME_HELLO || type == FRAME_WELCOME;
    memset(ret, 0, sizeof *ret);
    ret->type = type;
    ret->generation = lobby ? 0 : pick32(&m, 9);
    switch (type) {
    case FRAME_HELLO: fill_hello(&m, &ret->hello); return;
    case FRAME_WELCOME: fill_welcome(&m, &ret->welcome); return;
    case FRAME_VOCAB: fill_vocab(&m, &ret->vocab); return;
    case FRAME_SUBMIT: fill_submit(&m, &ret->submit); return;
    case FRAME_CANCEL: fill_cancel(&m, &ret->cancel); return;
    case FRAME_TOKENS: fill_tokens(&m, &ret->tokens); return;
    case FRAME_DONE: fill_done(&m, &ret->done); return;
    case FRAME_FAIL: fill_fail(&m, &ret->fail); return;
    case FRAME_STATUS: fill_status(&m, &ret->status); return;
    case FRAME_DRAIN:
        ret->drain =
            (struct frame_drain){(enum frame_drain_mode)pick(&m, FRAME_DRAIN_FINISH,
                                                             FRAME_DRAIN_RESUME, FRAME_DRAIN_EXIT),
                                 (double)pick(&m, 0, 100, 1000000000)};
        return;
    case FRAME_GOODBYE: ret->goodbye.reason = text(&m, "sigterm"); return;
    case FRAME_PING:
    case FRAME_PONG: ret->ping = (struct frame_ping){pick64(&m, 5), pick64(&m, 1000000)}; return;
    case FRAME_TYPE_END: break;
    }
    assert(!"a frame type without a sample");
}
