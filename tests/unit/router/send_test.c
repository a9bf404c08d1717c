/* The send state machine against h2o's rules: one send in flight, bytes that stay, nothing after the end. */
#include "tests/unit/router/fake_h2o.h"

#include "router/apierr.h"

#include <sys/socket.h>
#include <unistd.h>

static unsigned gone, room;

static void on_gone(void *arg) {
    gone++;
}

static void on_room(void *arg) {
    room++;
}

static const struct send_events events = {.on_gone = on_gone, .on_room = on_room};

static struct send *begin(struct fake *f) {
    gone = room = 0;
    fake_draining = false;
    if (!fake_metrics) fake_metrics = metrics_new("m");
    send_set_init(&fake_sends, NULL, false);
    fake_init(f, NULL);
    return send_new(f->call, &fake_sends, &events);
}

static void say(struct send *s, const char *text) {
    strbuf_add_str(send_buffer(s), text);
    send_touch(s);
}

static void done(struct fake *f) {
    fake_fini(f);
    CHECK_EQ(fake_sends.open_count, 0);
    CHECK(TAILQ_EMPTY(&fake_sends.dirty));
}

TEST(a_whole_reply_is_one_send_with_its_length) {
    struct fake f;
    struct send *s = begin(&f);
    send_whole(s, &SEND_HEAD(.status = 200, .content_type = "application/json"), "{}", 2);
    CHECK_EQ(f.sends, 1);
    CHECK(f.final);
    CHECK_EQ(f.req.res.content_length, 2);
    CHECK_STR(fake_header(&f, "content-type"), "application/json");
    CHECK_STR(fake_header(&f, "x-request-id"), "req_test");
    CHECK(fake_proceed(&f));
    CHECK_STR(f.body.p, "{}");
    done(&f);
    CHECK_EQ(fake_last_status, 200);
    CHECK_EQ(gone, 0); // whoever ended it is not told again
}

TEST(an_error_has_its_status_and_retry_headers) {
    struct fake f;
    struct send *s = begin(&f);
    struct apierr e;
    apierr_set(&e, APIERR_QUEUE_FULL, NULL, "full");
    e.retry_after_ms = 1500;
    send_error(s, &e);
    CHECK_EQ(f.req.res.status, 429);
    CHECK_STR(fake_header(&f, "retry-after"), "2");
    CHECK_STR(fake_header(&f, "retry-after-ms"), "1500");
    CHECK(fake_proceed(&f));
    CHECK_HAS(f.body.p, "queue_full");
    done(&f);
}

TEST(the_head_leaves_alone_when_there_is_no_text_yet) {
    struct fake f;
    struct send *s = begin(&f);
    send_begin(s, &SEND_HEAD(.status = 200, .content_type = "text/event-stream", .stream = true));
    CHECK_EQ(f.sends, 0); // with the next flush
    send_set_flush(&fake_sends);
    CHECK_EQ(f.sends, 1);
    CHECK_EQ(f.flying.len, 0);
    CHECK_EQ(f.req.res.content_length, SIZE_MAX);
    send_set_flush(&fake_sends);
    CHECK_EQ(f.sends, 1);
    CHECK(!fake_proceed(&f));
    CHECK_EQ(f.sends, 1); // nothing to say: no empty send
    fake_reset(&f);
    CHECK_EQ(gone, 1);
    done(&f);
    CHECK_EQ(gone, 1);
}

TEST(the_first_text_leaves_with_the_head) {
    struct fake f;
    struct send *s = begin(&f);
    send_begin(s, &SEND_HEAD(.status = 200, .stream = true));
    say(s, "one");
    send_set_flush(&fake_sends);
    CHECK_EQ(f.sends, 1);
    CHECK_EQ(f.flying.len, 3);
    fake_reset(&f);
    done(&f);
}

TEST(text_that_comes_while_one_send_flies_leaves_together) {
    struct fake f;
    struct send *s = begin(&f);
    send_begin(s, &SEND_HEAD(.status = 200, .stream = true));
    say(s, "a");
    send_set_flush(&fake_sends);
    for (int i = 0; i < 5; i++) {
        say(s, "b");
        send_set_flush(&fake_sends); // one is in flight: nothing happens
    }
    CHECK_EQ(f.sends, 1);
    CHECK_EQ(send_waiting_bytes(s), 5);
    CHECK(!fake_proceed(&f));
    CHECK_EQ(room, 1);
    CHECK_EQ(f.sends, 2);
    CHECK_EQ(f.flying.len, 5);
    CHECK_EQ(send_waiting_bytes(s), 0);
    say(s, "c");
    strbuf_add_str(send_buffer(s), "end");
    send_end(s);
    send_set_flush(&fake_sends);
    CHECK_EQ(f.sends, 2);
    CHECK(!fake_proceed(&f));
    CHECK_EQ(room, 1); // its owner has let go
    CHECK_EQ(f.sends, 3);
    CHECK(f.final); // last text and end: one write
    CHECK(fake_proceed(&f));
    CHECK_STR(f.body.p, "abbbbbcend");
    done(&f);
    CHECK_EQ(gone, 0);
}

TEST(a_request_that_is_reset_before_its_reply_tells_once) {
    struct fake f;
    begin(&f);
    fake_reset(&f);
    CHECK_EQ(gone, 1);
    done(&f);
}

TEST(a_reset_while_a_send_flies_tells_once) {
    struct fake f;
    struct send *s = begin(&f);
    send_begin(s, &SEND_HEAD(.status = 200, .stream = true));
    say(s, "a");
    send_set_flush(&fake_sends);
    say(s, "b");
    fake_reset(&f);
    CHECK_EQ(gone, 1);
    CHECK_EQ(fake_last_status, 499);
    done(&f);
}

TEST(a_reset_behind_the_end_tells_nobody) {
    struct fake f;
    struct send *s = begin(&f);
    send_begin(s, &SEND_HEAD(.status = 200, .stream = true));
    say(s, "a");
    send_set_flush(&fake_sends);
    send_end(s);
    fake_reset(&f);
    CHECK_EQ(gone, 0);
    done(&f);
}

TEST(a_draining_listener_asks_for_the_connection_to_close) {
    struct fake f;
    struct send *s = begin(&f);
    f.req.http1_is_persistent = 1;
    fake_draining = true;
    send_whole(s, &SEND_HEAD(.status = 200), "", 0);
    CHECK_EQ(f.req.http1_is_persistent, 0);
    done(&f);
}

/* ---- HTTP/1: a real descriptor, watched by a real loop ---- */

static uv_loop_t loop;
static h2o_socket_t *watched;

static h2o_socket_t *get_watched(h2o_conn_t *conn) {
    return watched;
}

// As begin(), over a connection whose other end is *ret_client.
static struct send *begin_http1(struct fake *f, int *ret_client) {
    static const h2o_conn_callbacks_t callbacks = {.get_socket = get_watched};
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    uv_loop_init(&loop);
    uv_pipe_t *pipe = calloc(1, sizeof *pipe);
    uv_pipe_init(&loop, pipe, 0);
    uv_pipe_open(pipe, ends[0]);
    watched = h2o_uv_socket_create((uv_stream_t *)pipe, (uv_close_cb)free);
    gone = room = 0;
    fake_draining = false;
    if (!fake_metrics) fake_metrics = metrics_new("m");
    send_set_init(&fake_sends, &loop, false);
    fake_init(f, NULL);
    f->conn.callbacks = &callbacks;
    f->req.version = 0x101;
    *ret_client = ends[1];
    return send_new(f->call, &fake_sends, &events);
}

static void done_http1(struct fake *f) {
    done(f);
    h2o_socket_close(watched);
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK_EQ(uv_loop_close(&loop), 0);
}

TEST(a_client_that_leaves_before_the_reply_is_seen_and_its_request_ends) {
    struct fake f;
    int client;
    begin_http1(&f, &client);
    uv_run(&loop, UV_RUN_NOWAIT);
    CHECK_EQ(gone, 0);
    close(client);
    uv_run(&loop, UV_RUN_ONCE);
    CHECK_EQ(gone, 1);
    CHECK_EQ(f.req.res.status, 499); // to nobody: h2o ends a request by its reply alone
    CHECK(f.final);
    CHECK(fake_proceed(&f));
    done_http1(&f);
}

TEST(a_client_that_leaves_a_silent_stream_is_seen) {
    struct fake f;
    int client;
    struct send *s = begin_http1(&f, &client);
    send_begin(s, &SEND_HEAD(.status = 200, .stream = true));
    send_set_flush(&fake_sends);
    fake_proceed(&f);
    close(client);
    uv_run(&loop, UV_RUN_ONCE);
    CHECK_EQ(gone, 1);
    CHECK(f.error);
    done_http1(&f);
}

// The write that was under way when the client left may still be reported as done. Then no later one would fail.
TEST(a_client_that_leaves_while_a_send_flies_is_cut_off_even_if_that_send_gets_through) {
    struct fake f;
    int client;
    struct send *s = begin_http1(&f, &client);
    send_begin(s, &SEND_HEAD(.status = 200, .stream = true));
    say(s, "a");
    send_set_flush(&fake_sends);
    close(client);
    uv_run(&loop, UV_RUN_ONCE);
    CHECK_EQ(gone, 1);
    CHECK(!f.error);
    CHECK(!fake_proceed(&f));
    CHECK(f.error);
    done_http1(&f);
}

// A sweep that answers somebody itself has looked at the clock before: what it sent is no older than nothing.
TEST(a_sweep_cuts_what_stalls_and_never_what_was_sent_after_its_look_at_the_clock) {
    struct fake f;
    int client;
    char c;
    struct send *s = begin_http1(&f, &client);
    send_begin(s, &SEND_HEAD(.status = 200, .stream = true));
    send_set_flush(&fake_sends);
    uint64_t sent = send_last_ms(s);
    send_set_sweep(&fake_sends, sent - 1, 30000);
    CHECK_EQ(recv(client, &c, 1, MSG_DONTWAIT), -1); // open, and nothing to read
    send_set_sweep(&fake_sends, sent + 30000, 30000);
    CHECK_EQ(recv(client, &c, 1, MSG_DONTWAIT), -1);
    send_set_sweep(&fake_sends, sent + 30001, 30000);
    CHECK_EQ(recv(client, &c, 1, MSG_DONTWAIT), 0); // cut
    fake_proceed(&f);
    close(client);
    uv_run(&loop, UV_RUN_ONCE);
    done_http1(&f);
}

// Of a reply that was handed over whole h2o tells nobody that it was never taken: the log would say 200.
TEST(a_whole_reply_that_stalls_is_cut_and_logged_as_unread) {
    struct fake f;
    int client;
    char c;
    struct send *s = begin_http1(&f, &client);
    send_whole(s, &SEND_HEAD(.status = 200), "0123456789", 10);
    CHECK_EQ(f.call->status, 200);
    send_set_sweep(&fake_sends, send_last_ms(s) + 30001, 30000);
    CHECK_EQ(recv(client, &c, 1, MSG_DONTWAIT), 0);
    CHECK_EQ(f.call->status, 499);
    CHECK_STR(f.call->facts.code, "client_closed");
    close(client);
    done_http1(&f);
}

// Questions are cheap, and a reply stays as long as its client may stall.
TEST(whole_replies_that_nobody_reads_have_a_bound_and_the_oldest_go) {
    struct fake f;
    int client;
    char c;
    struct send *s = begin_http1(&f, &client);
    CHECK_EQ(fake_sends.unread_bytes_max, SEND_UNREAD_BYTES_MAX);
    send_whole(s, &SEND_HEAD(.status = 200), "0123456789", 10);
    CHECK_EQ(fake_sends.unread_bytes, 10);
    uint64_t sent = send_last_ms(s);
    fake_sends.unread_bytes_max = 10;
    send_set_sweep(&fake_sends, sent + SEND_UNREAD_AGE_MS, 30000);
    fake_sends.unread_bytes_max = 9;
    send_set_sweep(&fake_sends, sent + SEND_UNREAD_AGE_MS - 1, 30000);
    CHECK_EQ(recv(client, &c, 1, MSG_DONTWAIT), -1); // open: it may still be read
    CHECK_EQ(fake_sends.unread_bytes, 10);
    send_set_sweep(&fake_sends, sent + SEND_UNREAD_AGE_MS, 30000);
    CHECK_EQ(recv(client, &c, 1, MSG_DONTWAIT), 0); // cut
    CHECK_EQ(f.call->status, 499);
    CHECK_EQ(fake_sends.unread_bytes, 0);
    close(client);
    done_http1(&f);
    CHECK_EQ(fake_sends.unread_bytes, 0);
}

TEST(a_reply_that_was_read_counts_no_more) {
    struct fake f;
    struct send *s = begin(&f);
    send_whole(s, &SEND_HEAD(.status = 200), "0123456789", 10);
    CHECK(fake_proceed(&f));
    done(&f);
    CHECK_EQ(fake_sends.unread_bytes, 0);
}

TEST(a_fixed_body_is_not_copied_and_does_not_count) {
    static const char body[] = "{\"fixed\":true}";
    struct fake f;
    begin(&f);
    fake_fini(&f);
    fake_init(&f, NULL);
    send_reply_fixed(f.call, &SEND_HEAD(.status = 200), body, sizeof body - 1);
    CHECK(f.flying.base == body && f.flying.len == sizeof body - 1);
    CHECK_EQ(f.req.res.content_length, sizeof body - 1);
    CHECK_EQ(fake_sends.unread_bytes, 0);
    CHECK(fake_proceed(&f));
    done(&f);
}

// Any order of text, flushes, h2o's asking, ends and resets: fake_h2o checks the rules, here what arrives.
TEST(random_orders_break_no_rule_and_lose_no_byte) {
    srand(7);
    for (int round = 0; round < 3000; round++) {
        struct fake f;
        struct send *s = begin(&f);
        struct strbuf said = {0};
        bool ended = false, over = false, was_reset = false;
        for (int step = 0; step < 60 && !over; step++) {
            int what = rand() % 10;
            if (what < 4 && !ended) {
                char text[16];
                snprintf(text, sizeof text, "<%d>", step);
                if (!send_begun(s)) send_begin(s, &SEND_HEAD(.status = 200, .stream = true));
                strbuf_add_str(&said, text);
                say(s, text);
            } else if (what < 6) {
                send_set_flush(&fake_sends);
            } else if (what < 8 && f.in_flight) {
                over = fake_proceed(&f);
            } else if (what == 8 && !ended && send_begun(s) && rand() % 4 == 0) {
                ended = true;
                send_end(s);
            } else if (what == 9 && rand() % 40 == 0) {
                over = was_reset = true;
                fake_reset(&f);
            }
        }
        if (!ended && !was_reset && send_begun(s)) {
            ended = true;
            send_end(s);
        }
        send_set_flush(&fake_sends);
        while (!over && f.in_flight) over = fake_proceed(&f);
        if (ended && !was_reset) {
            CHECK(f.final);
            CHECK_STR(strbuf_str(&f.body), strbuf_str(&said));
        }
        done(&f);
        CHECK_EQ(gone, ended ? 0 : 1);
        strbuf_fini(&said);
    }
}
