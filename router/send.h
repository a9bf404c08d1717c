/* send: what goes out over HTTP. The only caller of h2o_start_response and h2o_send.
 *
 * h2o takes one send at a time and does not copy the bytes, so each reply has two buffers: one fills, one flies.
 * What is added while one flies leaves together as soon as h2o asks for more. Touched replies are flushed once a turn
 * of the loop (send_set_flush). The end is one write: last event, end mark and end of body.
 *
 * A send lives in its request's pool: from send_new until its owner ends it (send_end, send_whole) or is told on_gone.
 * After either, the owner must not touch it again. Loop thread of the listener. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#include "common/strbuf.h"

struct apierr;
struct http_call;
struct send; // defined in send.c

// Of replies that wait for their readers whole, on a listener: a client can ask for far more in a second than it takes in
// the time it may stall, at ten bytes a question. Past it the connections with the oldest end, if those have waited for a
// while: whoever reads has them by then. Streams have bounds of their own.
enum { SEND_UNREAD_BYTES_MAX = 256 << 20, SEND_UNREAD_AGE_MS = 200 };

TAILQ_HEAD(send_list, send);
struct send_set { // the sends of one listener
    uv_loop_t *loop;
    struct send_list open;   // all
    struct send_list dirty;  // to be flushed this turn
    struct send_list unread; // whole, and not out yet; the oldest first
    bool half_close;         // a client that closed its writing side is still served
    uint32_t open_count;
    size_t unread_bytes, unread_bytes_max; // SEND_UNREAD_BYTES_MAX
};

void send_set_init(struct send_set *set, uv_loop_t *loop, bool half_close);
void send_set_flush(struct send_set *set); // before the loop sleeps
// Ends connections whose write has made no progress for stall_ms, and those past unread_bytes_max.
void send_set_sweep(struct send_set *set, uint64_t now_ms, uint64_t stall_ms);

struct send_events {
    void *arg;
    // The client has gone (or its connection was cut): nothing more can be sent. The last call.
    void (*on_gone)(void *arg);
    // Bytes have left: there may be room again. May be NULL.
    void (*on_room)(void *arg);
};

struct send_head {
    int status;
    const char *content_type;
    const char *allow;                // NULL: none
    uint32_t retry_after_ms;          // 0: none
    bool no_retry;                    // x-should-retry: false
    bool preflight;                   // the answer to a browser's question before a request
    bool stream;                      // no length, not to be cached or buffered on the way
    int32_t worker;                   // -1: not known, and none of the next two
    int64_t queue_ms, first_token_ms; // -1: not known
    int64_t processing_ms;            // -1: none
};
#define SEND_HEAD(...)                                                                             \
    ((struct send_head){                                                                           \
        .worker = -1, .queue_ms = -1, .first_token_ms = -1, .processing_ms = -1, __VA_ARGS__})

// Starts to watch the client. events NULL: nobody wants to know.
struct send *send_new(struct http_call *c, struct send_set *set, const struct send_events *events);

// A whole reply; ends the send. body is copied. Not after send_begin.
void send_whole(struct send *s, const struct send_head *h, const char *body, size_t len);
void send_error(struct send *s, const struct apierr *e); // a whole reply of the error's shape

// A stream: the status line and headers leave with the next flush.
void send_begin(struct send *s, const struct send_head *h);
bool send_begun(const struct send *s);
struct strbuf *send_buffer(struct send *s); // append whole events here, then send_touch
void send_touch(struct send *s);            // to be flushed this turn
size_t send_waiting_bytes(const struct send *s);
uint64_t send_last_ms(const struct send *s); // when bytes were last handed to h2o
// What is in the buffer is the last of the stream; ends the send.
void send_end(struct send *s);

const char *send_reason(int status); // the phrase of a status line

// For handlers that answer at once.
void send_reply(struct http_call *c, const struct send_head *h, const char *body, size_t len);
// The body is not copied: it never goes, nor changes.
void send_reply_fixed(struct http_call *c, const struct send_head *h, const char *body, size_t len);
void send_reply_error(struct http_call *c, const struct apierr *e);
