/* A request from its body to its last event, over a worker and an h2o that this test plays: what is streamed and what
 * is whole are the same however rounds cut the ids, nothing is lost from the books, no frame reaches the wrong reply. */
#include "tests/lib/test.h"
#include "tests/lib/tiny_tokenizer.h"
#include "tests/unit/router/fake_h2o.h"

#include "common/arena.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/mono.h"
#include "router/api_chat.h"
#include "router/apierr.h"
#include "router/backend.h"
#include "router/config.h"
#include "router/keys.h"
#include "router/model.h"
#include "router/place.h"
#include "router/relay.h"
#include "router/request.h"
#include "router/server.h"

enum { CONTEXT = 4096 };

/* ---- the worker ---- */

struct backend {
    uint32_t rank, generation;
    uint32_t room; // as place.c sees it
    bool full;
    bool dead;                // it said nothing since the last SUBMIT
    struct frame_submit last; // ids point into the request: read at once or not at all
    unsigned submits, cancels, drops;
    struct frame_stream cancelled;
};

struct backends {
    struct backend *v[2];
    uint32_t count;
};

uint32_t backend_rank(const struct backend *b) {
    return b->rank;
}
uint32_t backends_count(const struct backends *s) {
    return s->count;
}
struct backend *backends_at(struct backends *s, uint32_t rank) {
    return s->v[rank];
}
uint32_t backend_room(const struct backend *b) {
    return b->room;
}
static unsigned looks; // at workers
void backend_info(const struct backend *b, struct backend_info *ret) {
    looks++;
    *ret =
        (struct backend_info){.rank = b->rank, .state = BACKEND_READY, .generation = b->generation};
    ret->fingerprint = (struct frame_fingerprint){"build", "checkpoint", "cpu", "f32", "rope"};
    ret->status.context_max = CONTEXT;
}
uint64_t backend_heard_us(const struct backend *b) {
    return b->dead ? 0 : UINT64_MAX;
}
void backend_kind(const struct backend *b, char ret[FINGERPRINT_DIGEST_BYTES]) {
    struct backend_info i;
    backend_info(b, &i);
    fingerprint_digest(&i.fingerprint, ret);
}
int backend_submit(struct backend *b, const struct frame_submit *s, struct err *e) {
    if (b->full) return err_set(e, ST_FULL, "full");
    b->submits++;
    b->last = *s;
    return ST_OK;
}
void backend_cancel(struct backend *b, struct frame_stream s) {
    b->cancels++;
    b->cancelled = s;
}
void backend_drop(struct backend *b, const char *reason) {
    b->drops++;
}

/* ---- the server around it ---- */

struct world {
    struct server s;
    struct config config;
    struct model model;
    struct backend b;
    // Of the requests that come.
    struct key *key;
    const char *const *head; // names and values, NULL at the end
};

static uint32_t im_end = TINY_IM_END;
static char *names[] = {(char[]){"tiny"}};

void server_want_place(struct server *s) {
    s->place_wanted = true;
}
void server_draining(const struct server *s, struct apierr *ret) {
    apierr_set(ret, APIERR_DRAINING, NULL, "draining");
}
void server_no_worker(const struct server *s, struct apierr *ret) {
    apierr_set(ret, APIERR_NO_READY_WORKER, NULL, "no worker is ready");
    ret->retry_after_ms = 2000;
}
bool server_worker_ready(const struct server *s, uint32_t rank) {
    return rank == 0;
}
uint32_t server_context_max(const struct server *s) {
    return CONTEXT;
}
static void world_init(struct world *w) {
    struct err e = {0};
    memset(w, 0, sizeof *w);
    CHECK_OK(config_init(&w->config, 0, NULL, &e), e);
    w->model = (struct model){.names = names,
                              .name_count = 1,
                              .tokenizer = tiny_tokenizer(),
                              .rules = TEMPLATE_3_6,
                              .vocab_size = TINY_SIZE,
                              .context_max = CONTEXT,
                              .sampling = {.temperature = 1, .top_p = 1, .repetition = 1},
                              .stop_ids = &im_end,
                              .stop_count = 1};
    w->s.config = &w->config;
    w->s.model = &w->model;
    w->s.metrics = fake_metrics = metrics_new("tiny");
    w->s.relay = relay_new(&w->s);
    queue_init(&w->s.queue, 4, 1000000);
    TAILQ_INIT(&w->s.requests);
    send_set_init(&fake_sends, NULL, false);
}

static uint64_t count(struct world *w, enum metric which) {
    return metrics_get(w->s.metrics, which);
}

static void check_books(struct world *w) {
    uint64_t out = count(w, METRIC_FINISHED) + count(w, METRIC_FAILED) + count(w, METRIC_CANCELLED);
    CHECK_EQ_U64(count(w, METRIC_ACCEPTED), out + metrics_get_in_flight(w->s.metrics));
}

static void world_fini(struct world *w) {
    check_books(w);
    CHECK(TAILQ_EMPTY(&w->s.requests));
    CHECK_EQ(relay_streams(w->s.relay), 0);
    CHECK_EQ_U64(relay_unfilled(w->s.relay, 0), 0);
    CHECK_EQ_U64(metrics_get_in_flight(w->s.metrics), 0);
    queue_fini(&w->s.queue);
    relay_free(w->s.relay);
    metrics_free(w->s.metrics);
    fake_metrics = NULL;
    tokenizer_free(w->model.tokenizer);
    config_fini(&w->config);
}

static void ask(struct world *w, struct fake *f, const char *more) {
    static char text[4][4096]; // h2o keeps bodies while requests live
    static int turn;
    char *body = text[turn++ % 4];
    snprintf(body, sizeof text[0], "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]%s%s}",
             *more ? "," : "", more);
    fake_init(f, &w->s);
    f->call->key = w->key;
    for (const char *const *h = w->head; h && *h; h += 2)
        h2o_add_header_by_str(&f->req.pool, &f->req.headers, h[0], strlen(h[0]), 1, NULL, h[1],
                              strlen(h[1]));
    f->call->begun_us = mono_us();
    f->req.entity = h2o_iovec_init(body, strlen(body));
    api_chat_handle(f->call);
}

static struct choice *place(struct world *w) {
    struct queue_item *i = queue_first(&w->s.queue);
    CHECK(i != NULL);
    struct choice *c = choice_of_item(i);
    struct err e = {0};
    CHECK_OK(relay_submit(w->s.relay, c, &w->b, &e), e);
    queue_left(&w->s.queue, i, mono_ms());
    return c;
}

static void tokens(struct world *w, struct frame_stream s, uint32_t first, const uint32_t *ids,
                   uint32_t n) {
    struct arena a = {0};
    struct frame_tokens_entry entry = {
        .stream = s, .first = first, .ids = frame_ids_of(ids, n, &a), .filled = 1 << 20};
    struct frame f = {.type = FRAME_TOKENS, .tokens = {.round = 1, .entries = &entry, .count = 1}};
    relay_on_frame(w->s.relay, &w->b, &f);
    arena_fini(&a);
}

static void done(struct world *w, struct frame_stream s, enum frame_finish finish, int64_t stop_id,
                 uint32_t n) {
    struct frame f = {.type = FRAME_DONE,
                      .done = {.stream = s,
                               .finish = finish,
                               .stop_id = stop_id,
                               .completion_tokens = n,
                               .logits_hash = 0xabc}};
    relay_on_frame(w->s.relay, &w->b, &f);
}

static void fail(struct world *w, struct frame_stream s, enum frame_fail_code code) {
    struct frame f = {.type = FRAME_FAIL, .fail = {.stream = s, .code = code, .message = "why"}};
    relay_on_frame(w->s.relay, &w->b, &f);
}

static void drain(struct fake *f) {
    send_set_flush(&fake_sends);
    while (f->in_flight)
        if (fake_proceed(f)) return;
}

/* ---- reading replies ---- */

struct joined { // of a reply, streamed or whole
    struct strbuf content, reasoning, ids;
    char finish[16], hash[65], stop[64];
    json_int_t completion, reasoning_tokens;
};

static void joined_fini(struct joined *j) {
    strbuf_fini(&j->content);
    strbuf_fini(&j->reasoning);
    strbuf_fini(&j->ids);
}

static void add_text(struct strbuf *b, const json_t *v) {
    if (json_is_string(v)) strbuf_add(b, json_string_value(v), json_string_length(v));
}

static void add_choice(struct joined *j, const json_t *choice, const json_t *text) {
    add_text(&j->content, json_object_get(text, "content"));
    add_text(&j->reasoning, json_object_get(text, "reasoning_content"));
    const json_t *ids = json_object_get(choice, "token_ids");
    for (size_t i = 0; i < json_array_size(ids); i++)
        strbuf_printf(&j->ids, "%lld ", json_integer_value(json_array_get(ids, i)));
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (!finish) return;
    CHECK_STR(j->finish, ""); // once
    snprintf(j->finish, sizeof j->finish, "%s", finish);
    snprintf(j->hash, sizeof j->hash, "%s",
             json_string_value(json_object_get(choice, "token_sha256")));
    char *stop = json_dumps(json_object_get(choice, "stop_reason"), JSON_ENCODE_ANY);
    snprintf(j->stop, sizeof j->stop, "%s", stop);
    free(stop);
}

static void add_usage(struct joined *j, const json_t *usage) {
    if (!json_is_object(usage)) return;
    j->completion = json_integer_value(json_object_get(usage, "completion_tokens"));
    j->reasoning_tokens = json_integer_value(
        json_object_get(json_object_get(usage, "completion_tokens_details"), "reasoning_tokens"));
}

static void read_whole(const struct fake *f, struct joined *j) {
    json_t *v = json_loadb(f->body.p, f->body.len, JSON_ALLOW_NUL, NULL);
    CHECK(v != NULL);
    const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
    add_choice(j, choice, json_object_get(choice, "message"));
    add_usage(j, json_object_get(v, "usage"));
    json_decref(v);
}

static void read_stream(const struct fake *f, struct joined *j) {
    const char *p = f->body.p, *end = p + f->body.len;
    bool over = false;
    while (p < end) {
        const char *blank = memmem(p, (size_t)(end - p), "\n\n", 2);
        CHECK(blank && !over);
        if (*p == ':') {
            p = blank + 2;
            continue;
        }
        CHECK(!memcmp(p, "data: ", 6));
        CHECK(!memchr(p, '\n', (size_t)(blank - p)));
        over = !memcmp(p + 6, "[DONE]", 6);
        json_t *v = over ? NULL : json_loadb(p + 6, (size_t)(blank - p - 6), JSON_ALLOW_NUL, NULL);
        CHECK(over || v);
        const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
        if (choice) add_choice(j, choice, json_object_get(choice, "delta"));
        add_usage(j, json_object_get(v, "usage"));
        json_decref(v);
        p = blank + 2;
    }
    CHECK(over);
}

static void check_equal(const struct joined *a, const struct joined *b) {
    CHECK_STR(strbuf_str(&a->content), strbuf_str(&b->content));
    CHECK_EQ(a->content.len, b->content.len);
    CHECK_STR(strbuf_str(&a->reasoning), strbuf_str(&b->reasoning));
    CHECK_STR(strbuf_str(&a->ids), strbuf_str(&b->ids));
    CHECK_STR(a->finish, b->finish);
    CHECK_STR(a->hash, b->hash);
    CHECK_STR(a->stop, b->stop);
    CHECK_EQ(a->completion, b->completion);
    CHECK_EQ(a->reasoning_tokens, b->reasoning_tokens);
}

/* ---- the same reply, cut in every way ---- */

static uint32_t random_id(void) {
    static const uint32_t special[] = {TINY_THINK, TINY_END_THINK, TINY_IM_END,
                                       290 /* not in use */};
    int what = rand() % 12;
    if (what == 0) return special[rand() % 4];
    if (what < 5) return TINY_WORDS + (uint32_t)(rand() % TINY_WORD_COUNT);
    if (what < 7) return (uint32_t)(rand() % 256);
    return (uint32_t)(' ' + rand() % 95);
}

struct reply_case {
    uint32_t ids[80];
    uint32_t count;
    bool stop_id; // ends at the last id, which is a stop id
    const char *more;
};

static void make_case(struct reply_case *c) {
    static const char *const more[] = {
        "\"ignore_eos\":true",
        "\"ignore_eos\":true,\"stop\":[\"the\",\"STOP!\"]",
        "\"ignore_eos\":true,\"stop\":\"aab\",\"include_stop_str_in_output\":true",
        "\"ignore_eos\":true,\"chat_template_kwargs\":{\"enable_thinking\":false},\"stop\":[\"i\"]",
        "\"ignore_eos\":true,\"skip_special_tokens\":false,\"min_tokens\":10,\"stop\":[\"a\"]",
        "\"ignore_eos\":true,\"stop_token_ids\":[65]",
    };
    c->count = 1 + (uint32_t)(rand() % 80);
    for (uint32_t i = 0; i < c->count; i++) c->ids[i] = random_id();
    c->more = more[rand() % (int)(sizeof more / sizeof *more)];
    c->stop_id = strstr(c->more, "stop_token_ids") != NULL;
    for (uint32_t i = 0; i < c->count && c->stop_id; i++)
        if (c->ids[i] == 65) c->ids[i] = 66; // ids before the last are none
    if (c->stop_id) c->ids[c->count - 1] = 65;
}

static void run_case(struct world *w, const struct reply_case *c, bool stream, struct joined *j) {
    char more[400];
    snprintf(more, sizeof more, "%s,\"seed\":1,\"return_token_ids\":true%s", c->more,
             stream ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "");
    struct fake f;
    ask(w, &f, more);
    struct frame_stream s = place(w)->stream;
    unsigned cancels = w->b.cancels;
    uint32_t at = 0;
    while (at < c->count && w->b.cancels == cancels) {
        uint32_t n = 1 + (uint32_t)(rand() % (stream ? 6 : 80));
        if (n > c->count - at) n = c->count - at;
        tokens(w, s, at, c->ids + at, n);
        at += n;
        if (rand() % 2) send_set_flush(&fake_sends);
        if (rand() % 2 && f.in_flight) fake_proceed(&f);
    }
    if (w->b.cancels == cancels)
        done(w, s, c->stop_id ? FRAME_FINISH_STOP : FRAME_FINISH_LENGTH, c->stop_id ? 65 : -1,
             c->count);
    drain(&f);
    if (stream)
        read_stream(&f, j);
    else
        read_whole(&f, j);
    fake_fini(&f);
}

TEST(any_cutting_of_the_ids_gives_the_whole_reply) {
    struct world w;
    world_init(&w);
    srand(11);
    for (int i = 0; i < 1500; i++) {
        struct reply_case c;
        struct joined whole = {0};
        make_case(&c);
        run_case(&w, &c, false, &whole);
        for (int k = 0; k < 3; k++) {
            struct joined streamed = {0};
            run_case(&w, &c, true, &streamed);
            check_equal(&streamed, &whole);
            joined_fini(&streamed);
        }
        if (c.stop_id) {
            CHECK_STR(whole.finish, "stop");
            CHECK_STR(whole.stop, "65");
            CHECK_EQ(whole.completion, c.count);
        }
        joined_fini(&whole);
    }
    world_fini(&w);
}

TEST(every_write_of_a_stream_is_whole_events_and_the_last_has_the_end_mark) {
    struct world w;
    world_init(&w);
    struct fake f;
    ask(&w, &f, "\"stream\":true");
    struct frame_stream s = place(&w)->stream;
    CHECK_EQ(f.sends, 0); // no status line before the first token
    static const uint32_t ids[] = {'a', 'b', TINY_END_THINK, 'c'};
    for (uint32_t i = 0; i < 4; i++) {
        tokens(&w, s, i, ids + i, 1);
        send_set_flush(&fake_sends);
        if (!f.in_flight) continue;
        CHECK_HAS(f.flying_copy, "data: {");
        CHECK(!memcmp(f.flying.base + f.flying.len - 2, "\n\n", 2));
        fake_proceed(&f);
    }
    CHECK_EQ(f.req.res.status, 200);
    done(&w, s, FRAME_FINISH_LENGTH, -1, 4);
    send_set_flush(&fake_sends);
    CHECK(f.final);
    CHECK(f.flying.len > 14 && !memcmp(f.flying.base + f.flying.len - 14, "data: [DONE]\n\n", 14));
    CHECK(fake_proceed(&f));
    fake_fini(&f);
    world_fini(&w);
}

TEST(the_checkpoints_stop_id_counts_and_has_no_text) {
    struct world w;
    world_init(&w);
    struct fake f;
    struct joined j = {0};
    ask(&w, &f,
        "\"skip_special_tokens\":false,\"return_token_ids\":true,\"chat_template_kwargs\":{"
        "\"enable_thinking\":false}");
    struct frame_stream s = place(&w)->stream;
    static const uint32_t ids[] = {'a', TINY_IM_END};
    tokens(&w, s, 0, ids, 2);
    done(&w, s, FRAME_FINISH_STOP, TINY_IM_END, 2);
    drain(&f);
    read_whole(&f, &j);
    CHECK_STR(strbuf_str(&j.content), "a");
    CHECK_STR(j.ids.p, "97 300 ");
    CHECK_STR(j.finish, "stop");
    CHECK_STR(j.stop, "null");
    CHECK_EQ(j.completion, 2);
    joined_fini(&j);
    fake_fini(&f);
    world_fini(&w);
}

TEST(what_could_have_become_a_stop_string_comes_out_at_the_end) {
    for (int stream = 0; stream < 2; stream++) {
        struct world w;
        world_init(&w);
        struct fake f;
        struct joined j = {0};
        ask(&w, &f,
            stream ? "\"stream\":true,\"stop\":\"abc\",\"chat_template_kwargs\":{\"enable_"
                     "thinking\":false}"
                   : "\"stop\":\"abc\",\"chat_template_kwargs\":{\"enable_thinking\":false}");
        struct frame_stream s = place(&w)->stream;
        static const uint32_t ids[] = {'x', 'a', 'b'};
        tokens(&w, s, 0, ids, 3);
        done(&w, s, FRAME_FINISH_LENGTH, -1, 3);
        drain(&f);
        if (stream)
            read_stream(&f, &j);
        else
            read_whole(&f, &j);
        CHECK_STR(strbuf_str(&j.content), "xab");
        CHECK_STR(j.finish, "length");
        joined_fini(&j);
        fake_fini(&f);
        world_fini(&w);
    }
}

TEST(the_logits_hash_is_given_when_asked_for) {
    struct world w;
    world_init(&w);
    struct fake f;
    ask(&w, &f, "\"return_logits_hash\":true");
    struct frame_stream s = place(&w)->stream;
    CHECK(w.b.last.logits_hash);
    static const uint32_t ids[] = {'a'};
    tokens(&w, s, 0, ids, 1);
    done(&w, s, FRAME_FINISH_LENGTH, -1, 1);
    drain(&f);
    CHECK_HAS(f.body.p, "\"logits_hash\":\"0000000000000abc\"");
    fake_fini(&f);
    world_fini(&w);
}

/* ---- what goes wrong ---- */

TEST(frames_of_a_slots_earlier_user_reach_nobody) {
    struct world w;
    world_init(&w);
    struct fake first, second;
    static const uint32_t ids[] = {'a', 'b'};
    ask(&w, &first, "");
    struct frame_stream old = place(&w)->stream;
    tokens(&w, old, 0, ids, 1);
    fake_reset(&first);
    CHECK_EQ(w.b.cancels, 1);
    CHECK_EQ(w.b.cancelled.id, old.id);
    ask(&w, &second, "\"return_token_ids\":true");
    struct choice *r = place(&w);
    CHECK_EQ(r->stream.id, old.id); // the slot is used again
    CHECK(r->stream.epoch != old.epoch);
    tokens(&w, old, 1, ids, 1);
    done(&w, old, FRAME_FINISH_CANCELLED, -1, 2);
    fail(&w, old, FRAME_FAIL_INTERNAL);
    CHECK_EQ(r->ids.len, 0);
    CHECK_EQ(w.b.drops, 0);
    struct frame_stream s = r->stream;
    tokens(&w, s, 0, ids, 1);
    done(&w, s, FRAME_FINISH_LENGTH, -1, 1);
    drain(&second);
    CHECK_HAS(second.body.p, "\"token_ids\":[97]");
    fake_fini(&first);
    fake_fini(&second);
    world_fini(&w);
}

TEST(ids_with_a_gap_a_repeat_or_too_many_fail_the_stream_and_drop_the_worker) {
    static const struct { uint32_t first, n; } cases[] = {{2, 1}, {0, 1}, {1, 4}};
    static const uint32_t ids[] = {'a', 'b', 'c', 'd'};
    for (size_t i = 0; i < 3; i++) {
        struct world w;
        world_init(&w);
        struct fake f;
        ask(&w, &f, "\"max_tokens\":4");
        struct frame_stream s = place(&w)->stream;
        tokens(&w, s, 0, ids, 1);
        tokens(&w, s, cases[i].first, ids, cases[i].n);
        CHECK_EQ(w.b.drops, 1);
        CHECK_EQ(w.b.cancels, 1);
        drain(&f);
        CHECK_EQ(f.req.res.status, 500);
        CHECK_HAS(f.body.p, "internal_error");
        CHECK_EQ_U64(count(&w, METRIC_FAILED), 1);
        fake_fini(&f);
        world_fini(&w);
    }
}

TEST(an_end_whose_count_is_not_ours_is_an_error_not_a_short_reply) {
    struct world w;
    world_init(&w);
    struct fake f;
    static const uint32_t ids[] = {'a'};
    ask(&w, &f, "\"stream\":true");
    struct frame_stream s = place(&w)->stream;
    tokens(&w, s, 0, ids, 1);
    done(&w, s, FRAME_FINISH_LENGTH, -1, 2);
    drain(&f);
    CHECK_HAS(f.body.p, "internal_error");
    CHECK(!strstr(f.body.p, "[DONE]"));
    CHECK_EQ(w.b.drops, 1);
    fake_fini(&f);
    world_fini(&w);
}

TEST(a_full_worker_sends_the_request_back_to_the_front) {
    struct world w;
    world_init(&w);
    struct fake first, second;
    ask(&w, &first, "");
    struct choice *r = place(&w);
    ask(&w, &second, "");
    fail(&w, r->stream, FRAME_FAIL_FULL);
    CHECK(queue_first(&w.s.queue) == &r->queue_item);
    CHECK_EQ(r->state, CHOICE_QUEUED);
    CHECK_EQ(w.s.queue.requests, 2);
    fake_reset(&first);
    fake_reset(&second);
    CHECK_EQ(w.b.cancels, 0); // neither was at a worker
    fake_fini(&first);
    fake_fini(&second);
    world_fini(&w);
}

// Of `pinned` that came by the port of a full worker and two for any, the two go to the other worker. The looks at workers
// that this took.
static unsigned looks_beside(int pinned) {
    enum { MOST = 60 };
    static struct fake f[MOST + 2];
    struct world w;
    world_init(&w);
    w.s.queue.requests_max = MOST + 2;
    struct backend other = {.rank = 1, .room = 9};
    struct backends both = {{&w.b, &other}, 2};
    w.s.backends = &both;
    for (int i = 0; i < pinned + 2; i++) {
        fake_rank = i < pinned ? 0 : -1;
        ask(&w, &f[i], "");
    }
    looks = 0;
    place_all(&w.s);
    unsigned ret = looks;
    CHECK_EQ(other.submits, 2);
    CHECK_EQ(w.b.submits, 0);
    CHECK_EQ(w.s.queue.requests, pinned);
    w.b.room = 100;
    place_all(&w.s);
    CHECK_EQ(w.b.submits, pinned);
    CHECK_EQ(other.submits, 2);
    for (int i = 0; i < pinned + 2; i++) {
        fake_reset(&f[i]);
        fake_fini(&f[i]);
    }
    world_fini(&w);
    return ret;
}

// A thousand clients of one worker's port must not make placing for the other workers slow.
TEST(those_that_wait_for_a_full_worker_are_asked_for_once_a_pass_however_many_they_are) {
    CHECK_EQ(looks_beside(60), looks_beside(1));
}

static void lose(struct world *w, bool planned) {
    relay_on_lost(w->s.relay, &w->b, "gone", planned);
    w->b.generation++;
}

// Streamed text: 'a' .. 'h', with the worker lost behind the third id and, planned, behind the fifth.
TEST(a_reply_that_loses_its_worker_goes_on_behind_its_ids) {
    struct world w;
    world_init(&w);
    struct fake f;
    struct joined j = {0};
    ask(&w, &f,
        "\"stream\":true,\"return_token_ids\":true,\"max_tokens\":8,"
        "\"stream_options\":{\"include_usage\":true},"
        "\"chat_template_kwargs\":{\"enable_thinking\":false}");
    struct choice *r = place(&w);
    struct frame_stream first = r->stream;
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t id = 'a' + i;
        if (i == 3 || i == 5) {
            lose(&w, i == 5);
            CHECK_EQ(r->state, CHOICE_QUEUED);
            CHECK_EQ(place(&w) == r, true);
            CHECK_EQ(w.b.last.given.count, i);
            CHECK_EQ(w.b.last.max_tokens, 8);
            tokens(&w, first, i, &id, 1); // of the old stream: dropped
            CHECK_EQ(r->ids.len, i);
        }
        tokens(&w, r->stream, i, &id, 1);
    }
    done(&w, r->stream, FRAME_FINISH_LENGTH, -1, 8);
    drain(&f);
    read_stream(&f, &j);
    CHECK_STR(strbuf_str(&j.content), "abcdefgh");
    CHECK_EQ(j.completion, 8);
    CHECK_HAS(f.body.p, "\"resumed\":2");
    CHECK_EQ_U64(count(&w, METRIC_FINISHED), 1);
    joined_fini(&j);
    fake_fini(&f);
    world_fini(&w);
}

TEST(a_request_that_was_live_at_two_deaths_is_given_up) {
    struct world w;
    world_init(&w);
    struct fake early, late;
    static const uint32_t ids[] = {'a'};
    ask(&w, &early, "\"stream\":true");
    place(&w);
    ask(&w, &late, "\"stream\":true");
    tokens(&w, place(&w)->stream, 0, ids, 1);
    lose(&w, false);
    lose(&w, false); // at no worker: nobody's second death
    place(&w);
    lose(&w, true); // planned: does not count
    place(&w);
    place(&w);
    lose(&w, false);
    drain(&early);
    drain(&late);
    CHECK_EQ(early.req.res.status, 500);
    CHECK_HAS(early.body.p, "\"code\":\"request_failed_repeatedly\"");
    CHECK_EQ(late.req.res.status, 200);
    CHECK_HAS(late.body.p, "data: {\"error\":");
    CHECK_HAS(late.body.p, "\"code\":\"request_failed_repeatedly\"");
    CHECK_HAS(late.body.p, "not tried again");
    CHECK(!strstr(late.body.p, "[DONE]"));
    fake_fini(&early);
    fake_fini(&late);
    world_fini(&w);
}

// Its choices may be spread: one death each, of two workers, are two of the request.
TEST(the_deaths_of_a_request_are_counted_over_its_choices) {
    struct world w;
    world_init(&w);
    struct fake f;
    static const uint32_t ids[] = {'a'};
    ask(&w, &f, "\"n\":2");
    struct request *r = place(&w)->request;
    place(&w);
    lose(&w, false);
    CHECK_EQ(r->deaths.count, 1); // however many choices it took along
    struct choice *first = place(&w);
    tokens(&w, first->stream, 0, ids, 1);
    done(&w, first->stream, FRAME_FINISH_LENGTH, -1, 1);
    place(&w);
    lose(&w, false); // its first choice was complete
    drain(&f);
    CHECK_EQ(f.req.res.status, 500);
    CHECK_HAS(f.body.p, "2 workers died");
    fake_fini(&f);
    world_fini(&w);
}

// Requests that lost their worker stand in front of the others and in their own order; they wait route.resume_s.
// Two workers that die in one moment: a request of the first is handed to the second, which is dead already.
TEST(a_worker_that_was_dead_when_it_got_the_request_is_no_second_death) {
    struct world w;
    world_init(&w);
    struct fake f;
    ask(&w, &f, "");
    place(&w);
    lose(&w, false);
    place(&w);
    w.b.dead = true;
    lose(&w, false);
    CHECK_EQ(f.sends, 0);
    w.b.dead = false;
    place(&w);
    lose(&w, false); // this one counts
    drain(&f);
    CHECK_HAS(f.body.p, "not tried again");
    fake_fini(&f);
    world_fini(&w);
}

TEST(waiting_for_a_successor_keeps_the_order_and_has_a_deadline) {
    struct world w;
    world_init(&w);
    struct fake f[3];
    struct choice *r[3];
    for (int i = 0; i < 3; i++) {
        ask(&w, &f[i], "");
        if (i < 2) r[i] = place(&w);
    }
    lose(&w, false);
    for (int i = 0; i < 2; i++) {
        CHECK(queue_first(&w.s.queue) == &r[i]->queue_item);
        place(&w);
    }
    lose(&w, true);
    w.s.no_ready_since_ms = mono_ms(); // no worker at all, for longer than a new request would wait
    request_tick(r[0]->request, r[0]->resume.since_ms + 119000);
    CHECK_EQ(f[0].sends, 0);
    request_tick(r[0]->request, r[0]->resume.since_ms + 121000);
    drain(&f[0]);
    CHECK_EQ(f[0].req.res.status, 503);
    CHECK_HAS(f[0].body.p, "worker_lost");
    CHECK_HAS(f[0].body.p, "120 s");
    fake_reset(&f[1]);
    fake_reset(&f[2]);
    for (int i = 0; i < 3; i++) fake_fini(&f[i]);
    world_fini(&w);
}

TEST(a_broken_device_counts_as_a_lost_worker) {
    struct world w;
    world_init(&w);
    struct fake f;
    ask(&w, &f, "");
    struct choice *r = place(&w);
    fail(&w, r->stream, FRAME_FAIL_DEVICE);
    CHECK_EQ(r->state, CHOICE_QUEUED);
    CHECK_EQ(r->request->deaths.count, 1);
    lose(&w, false); // the same death, of which its other streams now hear
    CHECK_EQ(r->request->deaths.count, 1);
    fake_reset(&f);
    fake_fini(&f);
    world_fini(&w);
}

// Text for a client that does not read is bounded; what is behind it stays ids and comes when it reads again.
TEST(a_slow_client_is_held_back_and_loses_nothing) {
    struct world w;
    world_init(&w);
    struct fake f;
    struct joined j = {0};
    ask(&w, &f,
        "\"stream\":true,\"return_token_ids\":true,\"stream_options\":{\"include_usage\":true},"
        "\"chat_template_kwargs\":{\"enable_thinking\":false}");
    struct choice *r = place(&w);
    struct frame_stream s = r->stream;
    enum { N = 2000 };
    for (uint32_t i = 0; i < N; i++) {
        uint32_t id = 'a' + i % 26;
        tokens(&w, s, i, &id, 1);
        send_set_flush(&fake_sends); // the first write never ends
    }
    CHECK_EQ(r->ids.len, N);
    CHECK(r->taken < N);
    CHECK(send_waiting_bytes(r->request->send) < (64 << 10) + 4096);
    done(&w, s, FRAME_FINISH_LENGTH, -1, N);
    CHECK_EQ(r->state, CHOICE_FLUSHING);
    drain(&f);
    read_stream(&f, &j);
    CHECK_EQ(j.content.len, N);
    CHECK_EQ(j.completion, N);
    joined_fini(&j);
    fake_fini(&f);
    world_fini(&w);
}

TEST(a_full_queue_is_429_and_is_not_counted_as_accepted) {
    struct world w;
    world_init(&w);
    struct fake f[5];
    for (int i = 0; i < 5; i++) ask(&w, &f[i], "");
    CHECK_EQ(f[4].req.res.status, 429);
    CHECK(fake_header(&f[4], "retry-after-ms") != NULL);
    CHECK_EQ_U64(count(&w, METRIC_ACCEPTED), 4);
    for (int i = 0; i < 5; i++) fake_reset(&f[i]);
    for (int i = 0; i < 5; i++) fake_fini(&f[i]);
    CHECK_EQ_U64(count(&w, METRIC_CANCELLED), 4);
    world_fini(&w);
}

TEST(limits_become_what_the_worker_is_told) {
    struct world w;
    world_init(&w);
    struct fake f;
    ask(&w, &f,
        "\"top_p\":0,\"seed\":-1,\"min_tokens\":3,\"max_tokens\":999999,\"stop_token_ids\":[5,6],"
        "\"draft\":false,"
        "\"logit_bias\":{\"7\":-100},\"priority\":-5,\"cache_salt\":\"s\",\"temperature\":0.5,"
        "\"min_p\":0.25,"
        "\"presence_penalty\":1,\"frequency_penalty\":-1,\"repetition_penalty\":1.5");
    struct choice *r = place(&w);
    const struct frame_submit *s = &w.b.last;
    CHECK_EQ(s->max_tokens, CONTEXT - choice_prompt(r)->len);
    CHECK_EQ(s->min_tokens, 3);
    CHECK_EQ(s->sampling.top_k, 1); // top_p 0: one token
    CHECK(s->sampling.top_p == 1);
    CHECK_EQ_U64(s->sampling.seed, UINT64_MAX);
    CHECK(s->sampling.temperature == 0.5 && s->sampling.min_p == 0.25);
    CHECK(s->sampling.presence == 1 && s->sampling.frequency == -1 &&
          s->sampling.repetition == 1.5);
    CHECK_EQ(s->sampling.bias_count, 1);
    CHECK_EQ(s->stop.count, 2);
    CHECK(!s->draft && !s->ignore_eos && s->in_thought);
    CHECK_EQ(s->priority, -5);
    CHECK(s->prefix_salt != 0);
    CHECK_EQ(s->given.count, 0);
    fake_reset(&f);
    fake_fini(&f);
    world_fini(&w);
}

TEST(time_brings_the_status_line_keepalives_and_deadlines) {
    struct world w;
    world_init(&w);
    struct fake f;
    ask(&w, &f, "\"stream\":true");
    struct choice *r = place(&w);
    uint64_t t = r->request->received_us / 1000;
    request_tick(r->request, t + 9000);
    send_set_flush(&fake_sends);
    CHECK_EQ(f.sends, 0);
    request_tick(r->request, t + 10001); // stream.first_byte_s
    send_set_flush(&fake_sends);
    CHECK_EQ(f.sends, 1);
    CHECK_EQ(f.flying.len, 0);
    fake_proceed(&f);
    uint64_t last = send_last_ms(r->request->send);
    request_tick(r->request, last + 9000);
    send_set_flush(&fake_sends);
    CHECK_EQ(f.sends, 1);
    request_tick(r->request, last + 10001);
    send_set_flush(&fake_sends);
    CHECK_EQ(f.sends, 2);
    fake_proceed(&f);
    CHECK_STR(f.body.p, ": keepalive\n\n");
    request_tick(r->request, t + 3600001); // limits.request_s
    drain(&f);
    CHECK_HAS(f.body.p, "deadline_exceeded");
    CHECK_EQ(w.b.cancels, 1);
    fake_fini(&f);
    world_fini(&w);
}

/* ---- several choices ---- */

// One choice ends at its stop string while it waits for another worker; the other is still at one. Neither touches the other.
TEST(choices_end_and_move_on_their_own) {
    struct world w;
    world_init(&w);
    struct fake f;
    ask(&w, &f,
        "\"n\":2,\"seed\":18446744073709551615,\"stop\":\"c\",\"max_tokens\":4,"
        "\"chat_template_kwargs\":{\"enable_thinking\":false}");
    CHECK_EQ(w.s.queue.items, 2);
    CHECK_EQ(w.s.queue.requests, 1);
    struct choice *a = place(&w);
    CHECK_EQ_U64(w.b.last.sampling.seed, UINT64_MAX);
    struct choice *b = place(&w);
    CHECK_EQ_U64(w.b.last.sampling.seed, 0); // modulo 2^64
    static const uint32_t text[] = {'a', 'b', 'c', 'd'};
    tokens(&w, a->stream, 0, text, 3);
    CHECK_EQ(w.b.cancels, 1);
    CHECK_EQ(a->state, CHOICE_OVER);
    CHECK_EQ(count(&w, METRIC_FINISHED), 0);
    tokens(&w, b->stream, 0, text + 3, 1);
    lose(&w, false);
    CHECK_EQ(w.s.queue.requests, 1);
    CHECK_EQ(place(&w) == b, true);
    tokens(&w, b->stream, 1, text + 2, 1);
    drain(&f);
    // jansson's own integers are too small for the seed.
    json_t *v = json_loadb(f.body.p, f.body.len, JSON_DECODE_INT_AS_REAL, NULL);
    static const char *const wanted[] = {"ab", "d"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *choice = json_array_get(json_object_get(v, "choices"), i);
        const json_t *message = json_object_get(choice, "message");
        CHECK_STR(json_string_value(json_object_get(message, "content")), wanted[i]);
        CHECK(json_number_value(json_object_get(choice, "index")) == (double)i);
        CHECK_STR(json_string_value(json_object_get(choice, "stop_reason")), "c");
    }
    const json_t *usage = json_object_get(v, "usage");
    CHECK(json_number_value(json_object_get(usage, "completion_tokens")) == 5);
    json_decref(v);
    fake_fini(&f);
    world_fini(&w);
}

// The bound is of requests, however many choices they have; and what is queued of one that leaves goes with it.
TEST(a_request_enters_the_queue_whole_and_counts_once) {
    struct world w;
    world_init(&w);
    struct fake f[6];
    for (int i = 0; i < 6; i++) ask(&w, &f[i], i ? "" : "\"n\":8");
    CHECK_EQ(w.s.queue.requests, 4); // the bound
    CHECK_EQ(w.s.queue.items, 8 + 3);
    for (int i = 4; i < 6; i++) {
        drain(&f[i]);
        CHECK_HAS(f[i].body.p, "queue_full");
        CHECK_HAS(f[i].body.p, "4 requests wait");
        fake_fini(&f[i]);
    }
    fake_reset(&f[0]);
    CHECK_EQ(w.s.queue.requests, 3);
    CHECK_EQ(w.s.queue.items, 3);
    fake_fini(&f[0]);
    ask(&w, &f[0], "\"n\":2");
    CHECK_EQ(w.s.queue.requests, 4);
    for (int i = 0; i < 3; i++) place(&w);
    place(&w);
    CHECK_EQ(w.s.queue.requests, 1); // one of its two choices still waits
    for (int i = 0; i < 4; i++) {
        fake_reset(&f[i]);
        fake_fini(&f[i]);
    }
    CHECK_EQ(w.s.queue.requests, 0);
    world_fini(&w);
}

// A worker that leaves out what was asked for must not give a reply without it (tabby 430).
TEST(missing_logprobs_are_an_error_not_null) {
    struct world w;
    world_init(&w);
    struct fake f;
    ask(&w, &f, "\"logprobs\":true,\"top_logprobs\":2");
    struct choice *c = place(&w);
    CHECK_EQ(w.b.last.top_logprobs, 2);
    uint32_t id = 'a';
    tokens(&w, c->stream, 0, &id, 1);
    drain(&f);
    CHECK_HAS(f.body.p, "internal_error");
    CHECK_EQ(w.b.drops, 1);
    fake_fini(&f);
    world_fini(&w);
}

/* ---- the books ---- */

enum { LIVE_MAX = 4 };

static void random_step(struct world *w, struct fake *f, bool *live) {
    int i = rand() % LIVE_MAX;
    if (!live[i]) {
        static const char *const more[] = {"", "\"stream\":true", "\"stream\":true,\"stop\":\"a\"",
                                           "\"n\":2", "\"max_tokens\":3"};
        ask(w, &f[i], more[rand() % 5]);
        live[i] = true;
        return;
    }
    struct request *q = TAILQ_FIRST(&w->s.requests);
    for (int skip = rand() % LIVE_MAX; q && skip > 0 && TAILQ_NEXT(q, link); skip--)
        q = TAILQ_NEXT(q, link);
    struct choice *r = q ? &q->choices[(uint32_t)rand() % q->choice_count] : NULL;
    uint32_t id = 'a' + (uint32_t)(rand() % 3);
    bool at_worker = r && r->stream.id;
    switch (rand() % 8) {
    case 0: fake_reset(&f[i]); break;
    case 1:
        if (queue_first(&w->s.queue)) place(w);
        break;
    case 2:
    case 3:
        if (at_worker) tokens(w, r->stream, (uint32_t)r->ids.len, &id, 1);
        break;
    case 4:
        if (at_worker) done(w, r->stream, FRAME_FINISH_LENGTH, -1, (uint32_t)r->ids.len);
        break;
    case 5:
        if (at_worker)
            fail(w, r->stream,
                 (enum frame_fail_code[]){FRAME_FAIL_FULL, FRAME_FAIL_DEVICE,
                                          FRAME_FAIL_INTERNAL}[rand() % 3]);
        break;
    case 6:
        if (rand() % 4 == 0) lose(w, rand() % 2);
        break;
    default: send_set_flush(&fake_sends);
    }
}

TEST(accepted_is_finished_failed_cancelled_and_in_flight_at_every_moment) {
    struct world w;
    world_init(&w);
    struct fake f[LIVE_MAX];
    bool live[LIVE_MAX] = {0};
    srand(5);
    for (int step = 0; step < 20000; step++) {
        random_step(&w, f, live);
        check_books(&w);
        for (int i = 0; i < LIVE_MAX; i++) {
            if (!live[i]) continue;
            bool over = f[i].disposed;
            if (!over && f[i].in_flight && rand() % 2) over = fake_proceed(&f[i]);
            if (!over) continue;
            fake_fini(&f[i]);
            live[i] = false;
        }
    }
    CHECK(count(&w, METRIC_FINISHED) > 100 && count(&w, METRIC_FAILED) > 100 &&
          count(&w, METRIC_CANCELLED) > 100);
    for (int i = 0; i < LIVE_MAX; i++)
        if (live[i]) fake_fini(&f[i]);
    world_fini(&w);
}

/* ---- what stands beside the body ---- */

TEST(in_the_queue_keys_stand_beside_one_another_by_their_weights) {
    struct world w;
    world_init(&w);
    w.s.queue.requests_max = 20;
    struct key keys[2] = {{.name = "a", .weight = 2, .priority_min = INT64_MIN},
                          {.name = "b", .weight = 1, .priority_min = INT64_MIN}};
    struct fake f[9];
    static const char wanted[] = "abaabaabb";
    char order[10] = "";
    for (int i = 0; i < 9; i++) {
        w.key = &keys[i >= 5];
        ask(&w, &f[i], "\"max_tokens\":1");
    }
    for (int i = 0; i < 9; i++) order[i] = place(&w)->request->call->key == &keys[0] ? 'a' : 'b';
    CHECK_STR(order, wanted);
    for (int i = 0; i < 9; i++) {
        fake_reset(&f[i]);
        fake_fini(&f[i]);
    }
    world_fini(&w);
}

TEST(a_trace_goes_to_the_worker_and_the_session_decides_between_equal_workers) {
    static const char trace[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    static const char *const head[] = {"traceparent", trace, "x-session-id", "s1", NULL};
    static const char *const session[] = {"x-session-id", "s1", NULL};
    struct world w;
    struct fake f[5];
    uint64_t affinity[5];
    world_init(&w);
    w.s.queue.requests_max = 20;
    for (int i = 0; i < 5; i++) {
        static const char *const more[] = {"", "\"user\":\"u\"", "\"prompt_cache_key\":\"u\"",
                                           "\"user\":\"u\"", ""};
        w.head = i == 0 ? head : i < 3 ? session : NULL;
        ask(&w, &f[i], more[i]);
        const struct request *r = place(&w)->request;
        CHECK_STR(w.b.last.trace, i ? "" : trace);
        affinity[i] = r->affinity;
    }
    CHECK(affinity[0] != 0 && affinity[0] == affinity[1]); // the session before the user
    CHECK(affinity[2] != affinity[0]);                     // the cache key before both
    CHECK_EQ_U64(affinity[3], affinity[2]);                // the same text by another way
    CHECK_EQ_U64(affinity[4], 0);
    for (int i = 0; i < 5; i++) {
        fake_reset(&f[i]);
        fake_fini(&f[i]);
    }
    world_fini(&w);
}

// A gateway's word about fairness and urgency is a client's own claim when it comes from nobody we know.
TEST(only_a_trusted_proxy_names_group_and_priority) {
    static const char *const head[] = {"x-gateway-inference-fairness-id", "team-7",
                                       "x-gateway-inference-objective", "-42", NULL};
    struct world w;
    struct fake f[2];
    world_init(&w);
    w.head = head;
    for (int i = 0; i < 2; i++) {
        fake_from_proxy = i == 1;
        ask(&w, &f[i], "");
        const struct request *r = TAILQ_LAST(&w.s.requests, request_list);
        CHECK_STR(r->group, i ? "team-7" : "");
        CHECK_EQ(r->params.priority, i ? -42 : 0);
    }
    fake_from_proxy = false;
    for (int i = 0; i < 2; i++) {
        fake_reset(&f[i]);
        fake_fini(&f[i]);
    }
    world_fini(&w);
}

// Proxies with short idle limits cut a reply that is silent for long; a space in front of JSON is nothing.
TEST(a_whole_reply_that_takes_long_may_begin_with_spaces) {
    static const char text[] =
        "\"max_tokens\":2,\"chat_template_kwargs\":{\"enable_thinking\":false}";
    for (int ends_well = 0; ends_well < 2; ends_well++) {
        struct world w;
        struct fake f;
        world_init(&w);
        w.config.whitespace_s = 5;
        ask(&w, &f, text);
        struct choice *c = place(&w);
        uint64_t t = c->request->received_us / 1000;
        request_tick(c->request, t + 9000);
        CHECK(!f.started);
        request_tick(c->request, t + 10001); // stream.first_byte_s
        send_set_flush(&fake_sends);
        CHECK(!fake_proceed(&f));
        CHECK_EQ(f.req.res.status, 200);
        CHECK_STR(fake_header(&f, "content-type"), "application/json");
        uint64_t last = send_last_ms(c->request->send);
        request_tick(c->request, last + 4000);
        request_tick(c->request, last + 5001);
        send_set_flush(&fake_sends);
        CHECK(!fake_proceed(&f));
        CHECK_STR(f.body.p, "  ");
        static const uint32_t ids[] = {'a', 'b'};
        if (ends_well) {
            tokens(&w, c->stream, 0, ids, 2);
            done(&w, c->stream, FRAME_FINISH_LENGTH, -1, 2);
        } else {
            fail(&w, c->stream, FRAME_FAIL_INTERNAL);
        }
        drain(&f);
        json_t *v = json_loadb(f.body.p, f.body.len, 0, NULL);
        CHECK(json_object_get(v, ends_well ? "choices" : "error") != NULL);
        json_decref(v);
        fake_fini(&f);
        world_fini(&w);
    }
}

TEST(who_says_that_it_would_be_gone_before_its_turn_is_told_at_once_if_that_is_set) {
    static const char *const head[] = {"x-stainless-timeout",
                                       "20",
                                       "x-slo-ttft-ms",
                                       "1500",
                                       "x-stainless-read-timeout",
                                       "soon",
                                       NULL};
    struct world w;
    struct fake f[3];
    world_init(&w);
    w.s.queue.departures_per_s = 0.5;
    ask(&w, &f[0], ""); // two seconds' wait
    w.head = head;
    ask(&w, &f[1], "");
    CHECK_EQ(w.s.queue.items, 2); // the hint is not asked for
    w.config.use_client_timeout = true;
    ask(&w, &f[2], "");
    CHECK_EQ(w.s.queue.items, 2);
    drain(&f[2]);
    CHECK_HAS(f[2].body.p, "queue_full");
    CHECK_HAS(f[2].body.p, "4000 ms, longer than the client's 1500 ms");
    for (int i = 0; i < 2; i++) fake_reset(&f[i]);
    for (int i = 0; i < 3; i++) fake_fini(&f[i]);
    world_fini(&w);
}
