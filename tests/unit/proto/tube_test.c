/* tube: what is sent arrives whole and in order, whatever its size; a tube can be closed at any moment from either side. */
#include "common/err.h"
#include "common/mono.h"
#include "proto/frame.h"
#include "proto/tube.h"
#include "tests/lib/test.h"

#include <nng/nng.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LIMIT_S = 60, SIZES_MAX = 64 };

struct end { // one side, and what came of it
    struct tube *tube;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    size_t sizes[SIZES_MAX];
    uint32_t count, wrong, sent; // wrong: messages that are not what the other side sent
    bool up, down;
    uint32_t pause_after; // answers false from this message on; 0: never
    char why[96];
    bool flood; // every message sent is followed by another; their bytes are of no interest
};

static uint8_t byte_of(size_t len, size_t i) {
    return (uint8_t)(len * 31 + i * 7);
}

static nng_msg *make(size_t len) {
    nng_msg *m;
    CHECK_EQ(nng_msg_alloc(&m, len), 0);
    uint8_t *p = nng_msg_body(m);
    for (size_t i = 0; i < len; i++) p[i] = byte_of(len, i);
    return m;
}

static bool is_right(nng_msg *m) {
    const uint8_t *p = nng_msg_body(m);
    size_t len = nng_msg_len(m);
    for (size_t i = 0; i < len; i++)
        if (p[i] != byte_of(len, i)) return false;
    return true;
}

static void on_up(void *arg) {
    struct end *x = arg;
    pthread_mutex_lock(&x->lock);
    x->up = true;
    pthread_cond_signal(&x->moved);
    pthread_mutex_unlock(&x->lock);
}

static bool on_message(void *arg, nng_msg *m) {
    struct end *x = arg;
    pthread_mutex_lock(&x->lock);
    x->wrong += !x->flood && !is_right(m);
    if (x->count < SIZES_MAX) x->sizes[x->count] = nng_msg_len(m);
    x->count++;
    bool more = !x->pause_after || x->count < x->pause_after;
    pthread_cond_signal(&x->moved);
    pthread_mutex_unlock(&x->lock);
    nng_msg_free(m);
    return more;
}

static void on_sent(void *arg) {
    struct end *x = arg;
    pthread_mutex_lock(&x->lock);
    x->sent++;
    bool more = x->flood;
    pthread_cond_signal(&x->moved);
    pthread_mutex_unlock(&x->lock);
    nng_msg *m;
    if (more && !nng_msg_alloc(&m, 100000)) tube_send(x->tube, m);
}

static void on_down(void *arg, const char *why) {
    struct end *x = arg;
    pthread_mutex_lock(&x->lock);
    x->down = true;
    snprintf(x->why, sizeof x->why, "%s", why);
    pthread_cond_signal(&x->moved);
    pthread_mutex_unlock(&x->lock);
}

static void end_init(struct end *x, bool flood) {
    *x = (struct end){.flood = flood};
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->moved, NULL);
}

static void end_fini(struct end *x) {
    tube_close(x->tube);
    pthread_cond_destroy(&x->moved);
    pthread_mutex_destroy(&x->lock);
}

static struct tube_events events_of(struct end *x) {
    return (struct tube_events){x, on_up, on_message, on_sent, on_down};
}

// Waits until the condition over x, which it reads under the lock, holds.
#define WAIT(x_, condition_)                                                                       \
    do {                                                                                           \
        struct timespec until_;                                                                    \
        clock_gettime(CLOCK_REALTIME, &until_);                                                    \
        until_.tv_sec += LIMIT_S;                                                                  \
        int rc_ = 0;                                                                               \
        pthread_mutex_lock(&(x_)->lock);                                                           \
        while (!(condition_) && !rc_)                                                              \
            rc_ = pthread_cond_timedwait(&(x_)->moved, &(x_)->lock, &until_);                      \
        pthread_mutex_unlock(&(x_)->lock);                                                         \
        if (rc_) test_fail(__FILE__, __LINE__, "never came true: %s", #condition_);                \
    } while (0)

static bool is_down(struct end *x) {
    pthread_mutex_lock(&x->lock);
    bool down = x->down;
    pthread_mutex_unlock(&x->lock);
    return down;
}

static const char *fresh_url(void) {
    static char url[160];
    static int count;
    snprintf(url, sizeof url, "ipc://%.120s/t%d.sock", test_temp_dir(), count++);
    return url;
}

static void open_pair(struct end *a, struct end *b, const char *url) {
    struct err e = {0};
    struct tube_events ea = events_of(a), eb = events_of(b);
    CHECK_OK(tube_listen(&a->tube, url, &ea, &e), e);
    CHECK_OK(tube_dial(&b->tube, url, &eb, &e), e);
    unlink(url + strlen("ipc://"));
}

static void send_and_wait(struct end *x, size_t len) {
    uint32_t before = x->sent;
    tube_send(x->tube, make(len));
    WAIT(x, x->sent > before);
}

TEST(messages_of_every_size_arrive_whole_and_in_order_both_ways) {
    static const size_t sizes[] = {0,     1,     3,     65528, 65532, 65536,  65540,           2,
                                   65531, 65533, 65529, 0,     0,     200000, FRAME_BYTES_MAX, 5};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    struct end a, b;
    end_init(&a, false);
    end_init(&b, false);
    open_pair(&a, &b, fresh_url());
    for (uint32_t i = 0; i < COUNT; i++) {
        send_and_wait(&b, sizes[i]);
        send_and_wait(&a, sizes[COUNT - 1 - i]);
    }
    WAIT(&a, a.count == COUNT);
    WAIT(&b, b.count == COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK_EQ(a.sizes[i], sizes[i]);
        CHECK_EQ(b.sizes[i], sizes[COUNT - 1 - i]);
    }
    CHECK_EQ(a.wrong + b.wrong, 0);
    CHECK(a.up && !is_down(&a) && !is_down(&b));
    end_fini(&a);
    WAIT(&b, b.down);
    CHECK_STR(b.why, "its connection closed");
    end_fini(&b);
}

// What the router says at once waits for the worker that is to hear it.
TEST(what_a_listener_sends_before_anybody_dials_arrives) {
    struct end a, b;
    struct err e = {0};
    const char *url = fresh_url();
    end_init(&a, false);
    end_init(&b, false);
    struct tube_events ea = events_of(&a), eb = events_of(&b);
    CHECK_OK(tube_listen(&a.tube, url, &ea, &e), e);
    tube_send(a.tube, make(1000));
    CHECK_OK(tube_dial(&b.tube, url, &eb, &e), e);
    WAIT(&b, b.count == 1);
    CHECK_EQ(b.sizes[0], 1000);
    end_fini(&a);
    end_fini(&b);
}

TEST(a_side_that_wants_no_more_is_not_read_until_it_does) {
    enum { COUNT = 40, LEN = 100000 }; // more than the kernel holds
    struct end a, b;
    end_init(&a, true);
    end_init(&b, true);
    a.pause_after = 1;
    open_pair(&a, &b, fresh_url());
    tube_send(b.tube, make(LEN));
    WAIT(&a, a.count >= 1);
    pthread_mutex_lock(&a.lock);
    CHECK(a.count <= 2); // one, and what was read with its end
    a.pause_after = 0;
    pthread_mutex_unlock(&a.lock);
    for (int i = 0; i < 3; i++) tube_resume(a.tube); // once too often harms nothing
    WAIT(&a, a.count >= COUNT);
    end_fini(&a);
    WAIT(&b, b.down);
    end_fini(&b);
}

TEST(a_length_over_the_limit_ends_the_connection_by_name) {
    struct end a;
    struct err e = {0};
    const char *url = fresh_url();
    end_init(&a, false);
    struct tube_events ea = events_of(&a);
    CHECK_OK(tube_listen(&a.tube, url, &ea, &e), e);
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    snprintf(sa.sun_path, sizeof sa.sun_path, "%.100s", url + strlen("ipc://"));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    CHECK_EQ(write(fd, "\x01\x00\x00\x00\x07\xff\xff\xff\xff", 9), 9);
    WAIT(&a, a.down);
    CHECK_EQ(a.count, 1);
    CHECK_STR(a.why, "a message of 4294967295 bytes, at most 8388608 allowed");
    end_fini(&a);
    close(fd);
}

TEST(nobody_there_is_an_error_that_names_the_path) {
    struct end b;
    struct err e = {0};
    end_init(&b, false);
    struct tube_events eb = events_of(&b);
    CHECK_EQ(tube_dial(&b.tube, "ipc:///no/such/socket", &eb, &e), ST_CLOSED);
    CHECK_HAS(e.msg, "/no/such/socket");
    struct err f = {0};
    CHECK_EQ(tube_listen(&b.tube, "ipc:///no/such/folder/socket", &eb, &f), ST_IO);
    CHECK_HAS(f.msg, "/no/such/folder/socket");
    CHECK(b.tube == NULL);
    end_fini(&b);
}

static void *close_a(void *arg) {
    struct end *a = arg;
    end_fini(a);
    return NULL;
}

// nng's own protocols lose messages at this, and with them every later close in the process.
TEST(either_side_may_close_while_both_send_as_fast_as_they_can) {
    enum { TURNS = 300 };
    for (uint32_t i = 0; i < TURNS; i++) {
        struct end a, b;
        end_init(&a, true);
        end_init(&b, true);
        open_pair(&a, &b, fresh_url());
        tube_send(a.tube, make(100000));
        tube_send(b.tube, make(100000));
        uint32_t some = i % 5;
        WAIT(&a, a.count >= some);
        pthread_t t;
        bool both = i % 3 == 0; // at once, or one after the other
        CHECK_EQ(pthread_create(&t, NULL, close_a, &a), 0);
        if (!both) WAIT(&b, b.down);
        end_fini(&b);
        pthread_join(t, NULL);
    }
}
