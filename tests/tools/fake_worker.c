/* fake_worker: a worker without an engine, for tests and benches of the router. It speaks the real frames.
 *
 *   fake_worker [--config FILE] [flags]
 *     --lobby=URL --rank=N --token=T --model=NAME --name=NAME      as railyard-worker's
 *     --checkpoint=TEXT          of its fingerprint ("": the model's name)
 *     --streams=N --context=N    what its STATUS says (8, 4096)
 *     --reply="ID ID ..."        every reply is these ids; empty: a function of the prompt and the index, never a stop id
 *     --script=FILE              the n-th SUBMIT follows the n-th line; behind the last, --reply. Lines:
 *                                  reply ID ID ...      fail CODE TEXT (full invalid unsupported too_long device
 *                                  hang (no progress)                   internal)
 *                                  die N (SIGKILL to itself after N ids of this stream)
 *     --rate=R                   ids a second of each stream; 0: as fast as it goes (0)
 *     --per-round=K              ids of each stream in one TOKENS (1)
 *     --fill-rounds=N            rounds without an id before the first one (0)
 *     --load-ms=N                says loading that long before it is ready (0)
 *     --die-after=N              SIGKILL to itself after N ids of all streams; 0: never
 *     --exit=N                   exits with code N as soon as it is welcome (-1: does not)
 *     --garbage=KIND             once ready, sends: bytes (no msgpack), lie (a lying count), huge (over the size limit),
 *                                type (an unknown one), stale (of the generation before), router (a frame that only
 *                                routers send), flood (10,000 STATUS at once). none: nothing
 *     --silent                   joins, says nothing more and answers nothing
 *     --mute                     never says HELLO
 *     --versions=LO-HI           of HELLO ("2-2")
 *     --once                     ends when the router goes; otherwise it dials the lobby again
 *     --clock --phase=P          rounds begin at P of --rate's period of the monotonic clock; each id is that clock in
 *                                steps of 50 us, modulo 4,000 (tests/bench/load_client.h)
 *     --leash                    ends when the process that started it ends
 *
 * A reply ends with DONE(stop) at an id that VOCAB or the SUBMIT names as a stop id (that id is sent as well) or at the
 * end of its list, with DONE(length) at max_tokens. Given ids count as generated: a replay goes on behind them.
 * SIGTERM: takes no more, finishes, says GOODBYE, exit 0. */
#include "common/arena.h"
#include "common/err.h"
#include "common/ids.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "common/settings.h"
#include "common/strbuf.h"
#include "common/version.h"
#include "worker/wire.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct values {
    char *lobby, *token, *model, *name, *checkpoint, *reply, *script, *garbage, *versions;
    int64_t rank, streams, context, per_round, fill_rounds, load_ms, die_after, exit;
    double rate, phase;
    bool silent, mute, once, leash, clock;
};

#define AT(member_) offsetof(struct values, member_)
static const struct setting table[] = {
    {"lobby", SETTING_STRING, AT(lobby), NULL, 0, 0, NULL, NULL, "nng url of the lobby"},
    {"token", SETTING_STRING, AT(token), NULL, 0, 0, NULL, NULL, "of the router that started it"},
    {"model", SETTING_STRING, AT(model), "demo", 0, 0, NULL, NULL, "model name of HELLO"},
    {"name", SETTING_STRING, AT(name), "fake", 0, 0, NULL, NULL, "name of HELLO"},
    {"checkpoint", SETTING_STRING, AT(checkpoint), NULL, 0, 0, NULL, NULL, "of the fingerprint"},
    {"reply", SETTING_STRING, AT(reply), NULL, 0, 0, NULL, NULL, "ids of every reply"},
    {"script", SETTING_STRING, AT(script), NULL, 0, 0, NULL, NULL, "a line for each SUBMIT"},
    {"garbage", SETTING_CHOICE, AT(garbage), "none", 0, 0,
     "none|bytes|lie|huge|type|stale|router|flood", NULL, "what is sent once ready"},
    {"versions", SETTING_STRING, AT(versions), "2-2", 0, 0, NULL, NULL, "of HELLO"},
    {"rank", SETTING_INT, AT(rank), "-1", -1, 1 << 20, NULL, NULL, "wanted; -1: any"},
    {"streams", SETTING_INT, AT(streams), "8", 1, 4096, NULL, NULL, "at once"},
    {"context", SETTING_INT, AT(context), "4096", 1, 1 << 20, NULL, NULL, "ids of a stream"},
    {"per-round", SETTING_INT, AT(per_round), "1", 1, 4096, NULL, NULL, "ids a round and stream"},
    {"fill-rounds", SETTING_INT, AT(fill_rounds), "0", 0, 1 << 20, NULL, NULL, "before an id"},
    {"load-ms", SETTING_INT, AT(load_ms), "0", 0, 1 << 20, NULL, "ms", "of loading"},
    {"die-after", SETTING_INT, AT(die_after), "0", 0, 1 << 30, NULL, NULL, "ids in all"},
    {"exit", SETTING_INT, AT(exit), "-1", -1, 255, NULL, NULL, "code, once welcome"},
    {"rate", SETTING_REAL, AT(rate), "0", 0, 1e6, NULL, "1/s", "ids of a stream"},
    {"silent", SETTING_BOOL, AT(silent), "off", 0, 0, NULL, NULL, "says nothing after HELLO"},
    {"mute", SETTING_BOOL, AT(mute), "off", 0, 0, NULL, NULL, "does not say HELLO"},
    {"leash", SETTING_BOOL, AT(leash), "off", 0, 0, NULL, NULL, "ends with its parent"},
    {"clock", SETTING_BOOL, AT(clock), "off", 0, 0, NULL, NULL, "every id is the time of day"},
    {"phase", SETTING_REAL, AT(phase), "0", 0, 1, NULL, NULL, "of the rounds, in a round's time"},
    {"once", SETTING_BOOL, AT(once), "off", 0, 0, NULL, NULL, "ends with its router"},
};

struct stream {
    struct frame_stream name;
    struct ids prompt, reply, stop; // reply empty: the function of the prompt
    uint32_t sent, max_tokens, min_tokens;
    uint32_t fill_left, die_after;
    uint32_t generated; // by this process
    int32_t top_logprobs;
    bool ignore_eos, hang, listed;
    uint64_t hash; // of the prompt
};

struct fake {
    struct values v;
    struct wire *wire;
    struct arena arena; // of the frame being handled, and of the one being made
    FILE *script;
    struct stream *streams;
    uint32_t count;
    // Of VOCAB.
    bool has_vocab;
    uint32_t size;
    struct frame_range range; // the largest in use
    struct ids vocab_stop, special;

    uint64_t joined_ms, next_round_us, last_status_ms;
    uint32_t clock_id; // of this round
    uint64_t progress, rounds, tokens, prompt_tokens;
    bool draining, ending, ready_once;
    double load_seen;
    int signals;
};

static bool has(const struct ids *l, uint32_t id) {
    for (size_t i = 0; i < l->len; i++)
        if (l->v[i] == id) return true;
    return false;
}

static struct frame_fingerprint fingerprint_of(const struct fake *w) {
    const char *checkpoint = w->v.checkpoint[0] ? w->v.checkpoint : w->v.model;
    return (struct frame_fingerprint){version_string(), checkpoint, "fake", "none", "none"};
}

static void copy_ids(struct ids *ret, struct frame_ids from) {
    ret->len = 0;
    for (uint32_t i = 0; i < from.count; i++) ids_add(ret, frame_id_at(&from, i));
}

static int send_frame(struct fake *w, struct frame *f) {
    struct err e = {0};
    int st = wire_send(w->wire, f, &e);
    if (st && st != ST_CLOSED) log_warn("send_failed", "reason=\"%s\"", e.msg);
    return st;
}

/* STATUS. */

static double loaded(const struct fake *w) {
    uint64_t ms = mono_ms() - w->joined_ms;
    return ms >= (uint64_t)w->v.load_ms ? 1 : (double)ms / (double)w->v.load_ms;
}

static bool ready(const struct fake *w) {
    return w->has_vocab && loaded(w) >= 1;
}

static void send_status(struct fake *w) {
    bool room = ready(w) && !w->draining;
    uint32_t streams = (uint32_t)w->v.streams;
    struct frame f = {.type = FRAME_STATUS,
                      .status = {.state = !ready(w)      ? FRAME_STATE_LOADING
                                          : !w->draining ? FRAME_STATE_READY
                                          : w->count     ? FRAME_STATE_DRAINING
                                                         : FRAME_STATE_DRAINED,
                                 .reason = "",
                                 .load_fraction = loaded(w),
                                 .progress = w->progress,
                                 .streams_running = w->count,
                                 .streams_max = streams,
                                 .room = room && streams > w->count ? streams - w->count : 0,
                                 .context_max = (uint32_t)w->v.context,
                                 .vocab_size = w->size,
                                 .kv_blocks_used = w->count,
                                 .kv_blocks_total = streams,
                                 .kv_block_tokens = (uint32_t)w->v.context,
                                 .fill_tokens_per_s = 1e5,
                                 .round_ms = 0.1,
                                 .rounds = w->rounds,
                                 .tokens = w->tokens,
                                 .prompt_tokens = w->prompt_tokens,
                                 .fingerprint = fingerprint_of(w),
                                 .embedding = "nowhere: it has none"}};
    w->last_status_ms = mono_ms();
    send_frame(w, &f);
}

/* Streams. */

static void stream_fini(struct stream *s) {
    ids_fini(&s->prompt);
    ids_fini(&s->reply);
    ids_fini(&s->stop);
}

static void parse_ids(struct ids *ret, const char *text) {
    char *end;
    for (unsigned long v; v = strtoul(text, &end, 10), end != text; text = end)
        ids_add(ret, (uint32_t)v);
}

// One line of the script into s. False: it is a FAIL, with its code and text.
static bool follow_script(struct fake *w, struct stream *s, struct frame_fail *fail) {
    static char line[1 << 16];
    char word[32] = "";
    int n = 0;
    if (!w->script || !fgets(line, sizeof line, w->script)) {
        parse_ids(&s->reply, w->v.reply);
        s->listed = s->reply.len > 0;
        return true;
    }
    line[strcspn(line, "\n")] = '\0';
    sscanf(line, "%31s %n", word, &n);
    if (!strcmp(word, "reply")) {
        parse_ids(&s->reply, line + n);
        s->listed = true;
    } else if (!strcmp(word, "hang")) {
        s->hang = true;
    } else if (!strcmp(word, "die")) {
        s->die_after = (uint32_t)strtoul(line + n, NULL, 10);
    } else if (!strcmp(word, "fail")) {
        char code[32] = "";
        int m = 0;
        sscanf(line + n, "%31s %n", code, &m);
        fail->code = FRAME_FAIL_INTERNAL;
        for (int c = FRAME_FAIL_FULL; c < FRAME_FAIL_CODE_END; c++)
            if (!strcmp(code, frame_fail_name((enum frame_fail_code)c)))
                fail->code = (enum frame_fail_code)c;
        fail->message = line + n + m;
        return false;
    }
    return true;
}

static void send_fail(struct fake *w, struct frame_stream name, enum frame_fail_code code,
                      const char *text) {
    struct frame f = {.type = FRAME_FAIL, .fail = {name, code, text}};
    send_frame(w, &f);
}

static void on_submit(struct fake *w, const struct frame_submit *r) {
    struct frame_fail fail = {0};
    if (!ready(w) || w->draining || w->count == (uint32_t)w->v.streams)
        return send_fail(w, r->stream, FRAME_FAIL_FULL, "no room");
    struct stream s = {.name = r->stream,
                       .sent = r->given.count,
                       .max_tokens = r->max_tokens,
                       .min_tokens = r->min_tokens,
                       .fill_left = (uint32_t)w->v.fill_rounds,
                       .top_logprobs = r->top_logprobs,
                       .ignore_eos = r->ignore_eos};
    if (!follow_script(w, &s, &fail)) {
        stream_fini(&s);
        return send_fail(w, r->stream, fail.code, fail.message);
    }
    copy_ids(&s.prompt, r->prompt);
    copy_ids(&s.stop, r->stop);
    for (size_t i = 0; i < s.prompt.len; i++) s.hash = mix_u64(s.hash + s.prompt.v[i] + 1);
    w->streams[w->count++] = s;
    w->progress += s.prompt.len;
    w->prompt_tokens += s.prompt.len;
    send_status(w);
}

static void drop_stream(struct fake *w, uint32_t i) {
    stream_fini(&w->streams[i]);
    w->streams[i] = w->streams[--w->count];
}

static void send_done(struct fake *w, uint32_t i, enum frame_finish finish, int64_t stop_id) {
    struct stream *s = &w->streams[i];
    struct frame f = {.type = FRAME_DONE,
                      .done = {.stream = s->name,
                               .finish = finish,
                               .stop_id = stop_id,
                               .prompt_tokens = (uint32_t)s->prompt.len,
                               .completion_tokens = s->sent,
                               .rounds = s->generated,
                               .logits_hash = mix_u64(s->hash + s->sent)}};
    send_frame(w, &f);
    drop_stream(w, i);
    send_status(w);
}

static void on_cancel(struct fake *w, const struct frame_cancel *c) {
    for (uint32_t k = 0; k < c->count; k++)
        for (uint32_t i = 0; i < w->count; i++)
            if (w->streams[i].name.id == c->streams[k].id &&
                w->streams[i].name.epoch == c->streams[k].epoch) {
                send_done(w, i, FRAME_FINISH_CANCELLED, -1);
                break;
            }
}

// The id at index i of the reply: an ordinary one.
static uint32_t id_at(const struct fake *w, const struct stream *s, uint32_t i) {
    if (s->listed) return s->reply.v[i];
    if (w->v.clock) return w->clock_id;
    uint64_t h = mix_u64(s->hash ^ mix_u64(i + 1));
    for (;; h = mix_u64(h + 1)) {
        uint32_t id = w->range.first + (uint32_t)(h % w->range.count);
        if (!has(&w->vocab_stop, id) && !has(&w->special, id) && !has(&s->stop, id)) return id;
    }
}

static bool is_stop(const struct fake *w, const struct stream *s, uint32_t id) {
    if (s->sent < s->min_tokens) return false;
    return has(&s->stop, id) || (!s->ignore_eos && has(&w->vocab_stop, id));
}

static const struct frame_logprobs *logprobs_of(struct fake *w, const struct stream *s,
                                                const uint32_t *ids, uint32_t count) {
    if (s->top_logprobs < 0) return NULL;
    uint32_t best = (uint32_t)s->top_logprobs;
    struct frame_logprobs *ret = arena_calloc(&w->arena, count, sizeof *ret);
    for (uint32_t i = 0; i < count; i++) {
        struct frame_logprob *top = arena_calloc(&w->arena, best, sizeof *top);
        for (uint32_t k = 0; k < best; k++)
            top[k] = (struct frame_logprob){k ? w->range.first + k : ids[i], -0.25f - (float)k};
        ret[i] = (struct frame_logprobs){-0.25f, top, best};
    }
    return ret;
}

enum outcome { GOES_ON, ENDS_LENGTH, ENDS_LIST, ENDS_STOP };

// The stream's share of a round into *ret.
static enum outcome advance(struct fake *w, struct stream *s, struct frame_tokens_entry *ret) {
    uint32_t *ids = arena_alloc(&w->arena, (size_t)w->v.per_round * sizeof *ids);
    uint32_t n = 0;
    enum outcome end = GOES_ON;
    *ret = (struct frame_tokens_entry){
        .stream = s->name, .first = s->sent, .filled = (uint32_t)s->prompt.len};
    while (!s->fill_left && n < (uint32_t)w->v.per_round && end == GOES_ON) {
        if (s->listed && s->sent >= s->reply.len)
            return ret->ids = frame_ids_of(ids, n, &w->arena), ENDS_LIST;
        ids[n] = id_at(w, s, s->sent);
        s->sent++, s->generated++;
        if (is_stop(w, s, ids[n]))
            end = ENDS_STOP;
        else if (s->sent >= s->max_tokens)
            end = ENDS_LENGTH;
        n++;
    }
    if (s->fill_left) s->fill_left--;
    ret->ids = frame_ids_of(ids, n, &w->arena);
    ret->logprobs = logprobs_of(w, s, ids, n);
    return end;
}

static void die_if_due(struct fake *w) {
    bool due = w->v.die_after && w->tokens >= (uint64_t)w->v.die_after;
    for (uint32_t i = 0; i < w->count; i++)
        due |= w->streams[i].die_after && w->streams[i].generated >= w->streams[i].die_after;
    if (!due) return;
    usleep(20000); // what was sent should leave the process: the test is about what comes after
    raise(SIGKILL);
}

static void run_round(struct fake *w) {
    struct frame_tokens_entry *entries = arena_calloc(&w->arena, w->count, sizeof *entries);
    enum outcome *ends = arena_calloc(&w->arena, w->count, sizeof *ends);
    uint32_t n = 0;
    w->clock_id = (uint32_t)(mono_us() / 50 % 4000);
    for (uint32_t i = 0; i < w->count; i++) {
        if (w->streams[i].hang) continue;
        ends[i] = advance(w, &w->streams[i], &entries[n]);
        w->tokens += entries[n].ids.count;
        w->progress += entries[n].ids.count + 1;
        n++;
    }
    struct frame f = {.type = FRAME_TOKENS, .tokens = {w->rounds++, 100, n, entries, n}};
    if (n) send_frame(w, &f);
    die_if_due(w);
    for (uint32_t i = w->count; i-- > 0;) { // backwards: an ended one is replaced by the last
        struct stream *s = &w->streams[i];
        if (ends[i] == ENDS_STOP) send_done(w, i, FRAME_FINISH_STOP, id_at(w, s, s->sent - 1));
        if (ends[i] == ENDS_LIST) send_done(w, i, FRAME_FINISH_STOP, -1);
        if (ends[i] == ENDS_LENGTH) send_done(w, i, FRAME_FINISH_LENGTH, -1);
    }
}

/* Frames of the router. */

static void on_vocab(struct fake *w, const struct frame_vocab *v) {
    w->range = (struct frame_range){0, 0};
    for (uint32_t i = 0; i < v->used_count; i++)
        if (v->used[i].count > w->range.count) w->range = v->used[i];
    w->size = v->size;
    copy_ids(&w->vocab_stop, v->stop);
    copy_ids(&w->special, v->special);
    w->has_vocab = true;
    send_status(w);
}

static void on_drain(struct fake *w, const struct frame_drain *d) {
    w->draining = d->mode != FRAME_DRAIN_RESUME;
    w->ending |= d->mode == FRAME_DRAIN_EXIT;
    send_status(w);
}

// False: the router says GOODBYE.
static bool on_frame(struct fake *w, const struct frame *f) {
    struct frame pong = {.type = FRAME_PONG, .ping = f->ping};
    if (w->v.silent) return true;
    switch (f->type) {
    case FRAME_VOCAB: on_vocab(w, &f->vocab); break;
    case FRAME_SUBMIT: on_submit(w, &f->submit); break;
    case FRAME_CANCEL: on_cancel(w, &f->cancel); break;
    case FRAME_DRAIN: on_drain(w, &f->drain); break;
    case FRAME_PING: send_frame(w, &pong); break;
    case FRAME_GOODBYE: return false;
    default: break;
    }
    return true;
}

/* Garbage. */

static void send_garbage(struct fake *w) {
    const char *kind = w->v.garbage;
    uint32_t g = wire_welcome(w->wire)->generation;
    struct frame f = {.type = FRAME_GOODBYE, .generation = g, .goodbye = {"x"}};
    struct strbuf b = {0};
    if (!strcmp(kind, "router")) f = (struct frame){.type = FRAME_CANCEL, .generation = g};
    if (!strcmp(kind, "stale")) f.generation = g - 1;
    frame_encode(&b, &f, NULL);
    if (!strcmp(kind, "flood")) {
        for (int i = 0; i < 10000; i++) send_status(w);
        strbuf_fini(&b);
        return;
    }
    if (!strcmp(kind, "bytes")) strbuf_reset(&b), strbuf_add_str(&b, "GET / HTTP/1.1\r\n\r\n");
    if (!strcmp(kind, "lie")) strbuf_reset(&b), strbuf_add(&b, "\xdd\x0f\xff\xff\xff", 5);
    if (!strcmp(kind, "type")) b.p[1] = 0x7e;
    if (!strcmp(kind, "huge")) {
        strbuf_reserve(&b, FRAME_BYTES_MAX + 1);
        b.len = FRAME_BYTES_MAX + 1;
    }
    struct err e = {0};
    wire_send_bytes(w->wire, b.p, b.len, &e);
    strbuf_fini(&b);
}

/* Life. */

static int wait_ms(const struct fake *w) {
    if (w->count == 0) return ready(w) ? 200 : 20;
    uint64_t now = mono_us();
    return now >= w->next_round_us ? 0 : (int)((w->next_round_us - now + 999) / 1000);
}

// Runs a round when one is due.
static void turn(struct fake *w) {
    uint64_t now = mono_us();
    if (w->count && now >= w->next_round_us) {
        double gap = w->v.rate > 0 ? 1e6 * (double)w->v.per_round / w->v.rate : 0;
        // On time even when a turn came late; after a pause, from now.
        bool late = now > w->next_round_us + (uint64_t)gap;
        w->next_round_us = (late ? now : w->next_round_us) + (uint64_t)gap;
        if (w->v.clock && gap > 0) { // rounds of all such workers keep their distance
            double phase = w->v.phase * gap;
            double next = (double)(uint64_t)(((double)now - phase) / gap) + 1;
            w->next_round_us = (uint64_t)(next * gap + phase);
        }
        run_round(w);
    }
    bool news = ready(w) != (w->load_seen >= 1);
    if (news || mono_ms() - w->last_status_ms >= 1000) send_status(w);
    w->load_seen = ready(w) ? 1 : 0;
    if (ready(w) && !w->ready_once && strcmp(w->v.garbage, "none")) send_garbage(w);
    w->ready_once |= ready(w);
}

static void read_signal(struct fake *w) {
    struct signalfd_siginfo info;
    if (read(w->signals, &info, sizeof info) != sizeof info) return;
    w->draining = w->ending = true;
    if (!w->v.silent) send_status(w);
}

// Takes what the router sent. False: it has gone.
static bool take_frames(struct fake *w) {
    for (;;) {
        struct frame f;
        struct err e = {0};
        arena_reset(&w->arena);
        int st = wire_take(w->wire, &f, &w->arena, &e);
        if (st == ST_NOT_FOUND) return true;
        if (st) return log_warn("router_lost", "reason=\"%s\"", e.msg), false;
        if (!on_frame(w, &f)) return false;
    }
}

// One incarnation. True: it ended in good order.
static bool serve(struct fake *w) {
    for (;;) {
        struct pollfd fds[2] = {{wire_fd(w->wire), POLLIN, 0}, {w->signals, POLLIN, 0}};
        poll(fds, 2, w->v.silent ? -1 : wait_ms(w));
        if (fds[1].revents) read_signal(w);
        if (fds[0].revents && !take_frames(w)) return false;
        arena_reset(&w->arena);
        if (!w->v.silent) turn(w);
        if (w->ending && w->count == 0) return true;
    }
}

static void reset(struct fake *w) {
    while (w->count) drop_stream(w, 0);
    w->has_vocab = w->ready_once = false;
    w->load_seen = 0;
    w->joined_ms = mono_ms();
    w->last_status_ms = 0;
}

static int join(struct fake *w) {
    struct frame_hello hello = {
        .rank = (int32_t)w->v.rank,
        .pid = (uint32_t)getpid(),
        .supervised = w->v.token[0] != '\0',
        .token = w->v.token,
        .name = w->v.name,
        .model = w->v.model,
        .gpu_name = "",
        .gpu_uuid = "",
        .gpu_pci = "",
        .fingerprint = fingerprint_of(w),
    };
    sscanf(w->v.versions, "%u-%u", &hello.version_min, &hello.version_max);
    struct wire_config c = {w->v.lobby, &hello, w->signals};
    struct err e = {0};
    int st = wire_join(&w->wire, &c, &e);
    if (st) log_warn("join", "reason=\"%s\"", e.msg);
    return st;
}

static int run(struct fake *w) {
    for (uint32_t wait = 50;; wait = min_u32(2 * wait, 1000)) {
        int st = join(w);
        if (st == ST_CANCELLED) return 0;
        if (st == ST_VERSION || st == ST_UNSUPPORTED) return 4;
        if (st && w->v.once) return 5;
        if (st) {
            struct pollfd stop = {w->signals, POLLIN, 0};
            if (poll(&stop, 1, (int)wait) > 0) return 0;
            continue;
        }
        if (w->v.exit >= 0) return wire_close(w->wire, 0), (int)w->v.exit;
        reset(w);
        bool good = serve(w);
        struct frame bye = {.type = FRAME_GOODBYE, .goodbye = {"sigterm"}};
        if (good) send_frame(w, &bye);
        wire_close(w->wire, good ? 1000 : 0);
        w->wire = NULL;
        if (good || w->v.once) return 0;
        wait = 25;
    }
}

// What the router expects of its children: gone when it is. Started by hand: SIGTERM and SIGINT end in good order.
static int watch_signals(const struct fake *w) {
    sigset_t set;
    if (w->v.token[0] || w->v.leash) prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL); // before nng has threads
    return signalfd(-1, &set, SFD_CLOEXEC);
}

int main(int argc, char **argv) {
    struct fake w = {0};
    struct settings s;
    struct err e = {0};
    int count = 0;
    const char **args = mem_calloc((size_t)argc, sizeof *args);
    log_init("fake_worker", LOG_LEVEL_INFO);
    settings_init(&s, table, sizeof table / sizeof table[0], &w.v);
    int st = settings_parse(&s, argc - 1, argv + 1, args, &count, &e);
    if (!st && count) st = err_set(&e, ST_INVAL, "wanted flags only, found '%s'", args[0]);
    free(args);
    if (st) {
        fprintf(stderr, "fake_worker: %s\n", e.msg);
        settings_fini(&s);
        return 2;
    }
    const char *token =
        getenv("RAILYARD_TOKEN"); // as a router's child; the flag is for tests that lie
    if (token && !w.v.token[0]) st = settings_set(&s, "token", token, 1, &e);
    if (w.v.token[0]) w.v.once = true;
    w.script = w.v.script[0] ? fopen(w.v.script, "re") : NULL;
    w.streams = mem_calloc((size_t)w.v.streams, sizeof *w.streams);
    w.signals = watch_signals(&w);
    while (w.v.mute) pause();
    int code = run(&w);
    while (w.count) drop_stream(&w, 0);
    if (w.script) fclose(w.script);
    ids_fini(&w.vocab_stop);
    ids_fini(&w.special);
    arena_fini(&w.arena);
    free(w.streams);
    settings_fini(&s);
    close(w.signals);
    return code;
}
