/* load_client: see load_client.h. HTTP/2 is as little as it takes: own header fields as literals, theirs unread, wide
 * windows, DATA. */
#include "tests/bench/load_client.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/strbuf.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    READ_BYTES = 256 << 10,
    CARRY_BYTES = 48,
    FRAME_HEAD_BYTES = 9,
    WINDOW_STEP = 1 << 29,
    READS_MAX = 512, // events of one epoll_wait
};

static const char MARK[] = "\"token_ids\":[";

struct carry { // the end of what was read, in which a mark may have begun
    char bytes[CARRY_BYTES];
    uint32_t len;
    bool begun;
};

struct connection {
    int fd;
    struct carry *streams; // by (number - 1) / 2; HTTP/1.1: one
    struct strbuf in;      // HTTP/2: an unfinished frame
    uint64_t unseen;       // HTTP/2: bytes of the window not given back
};

struct load {
    struct load_config config;
    int epoll;
    struct connection *conns;
    uint32_t conn_count, begun;
    uint64_t events, bytes;
    uint64_t ages[LOAD_TICKS];
    char buf[READ_BYTES];
};

static void die(const char *what) {
    fprintf(stderr, "router_bench: %s: %s\n", what, strerror(errno));
    exit(1);
}

uint32_t load_tick_id(void) {
    return (uint32_t)(mono_us() / LOAD_TICK_US % LOAD_TICKS);
}

/* ---- events ---- */

static void count_event(struct load *l, struct carry *c, uint32_t id, uint32_t now) {
    l->events++;
    l->ages[(now + LOAD_TICKS - id % LOAD_TICKS) % LOAD_TICKS]++;
    if (!c->begun) l->begun++;
    c->begun = true;
}

// Finds the marks in text; what may be the beginning of one is carried.
static void scan_whole(struct load *l, struct carry *c, const char *p, size_t n, uint32_t now) {
    const char *end = p + n;
    c->len = 0;
    for (;;) {
        const char *m = memmem(p, (size_t)(end - p), MARK, sizeof MARK - 1);
        if (!m) {
            size_t keep = (size_t)(end - p) < sizeof MARK - 2 ? (size_t)(end - p) : sizeof MARK - 2;
            memcpy(c->bytes, end - keep, keep);
            c->len = (uint32_t)keep;
            return;
        }
        const char *d = m + sizeof MARK - 1;
        uint32_t id = 0;
        while (d < end && *d >= '0' && *d <= '9') id = id * 10 + (uint32_t)(*d++ - '0');
        if (d == end) {
            c->len = (uint32_t)(end - m);
            memcpy(c->bytes, m, c->len);
            return;
        }
        if (*d == ']' && d > m + sizeof MARK - 1) count_event(l, c, id, now);
        p = d;
    }
}

static void scan(struct load *l, struct carry *c, const char *p, size_t n, uint32_t now) {
    static char joined[READ_BYTES + CARRY_BYTES];
    if (!c->len) {
        scan_whole(l, c, p, n, now);
        return;
    }
    memcpy(joined, c->bytes, c->len);
    memcpy(joined + c->len, p, n);
    scan_whole(l, c, joined, c->len + n, now);
}

/* ---- HTTP/2 ---- */

static void put_frame_head(struct strbuf *b, size_t len, int type, int flags, uint32_t stream) {
    uint8_t h[FRAME_HEAD_BYTES] = {
        (uint8_t)(len >> 16),    (uint8_t)(len >> 8),    (uint8_t)len,
        (uint8_t)type,           (uint8_t)flags,         (uint8_t)(stream >> 24),
        (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    strbuf_add(b, h, sizeof h);
}

static void put_field(struct strbuf *b, const char *name, const char *value) {
    strbuf_add_char(b, 0); // literal, not indexed, new name
    strbuf_add_char(b, (char)strlen(name));
    strbuf_add_str(b, name);
    strbuf_add_char(b, (char)strlen(value));
    strbuf_add_str(b, value);
}

static void put_window(struct strbuf *b, uint32_t more) {
    uint32_t be = htonl(more);
    put_frame_head(b, 4, 8, 0, 0);
    strbuf_add(b, &be, 4);
}

static void put_request2(struct strbuf *b, uint32_t stream, const char *body) {
    struct strbuf fields = {0};
    put_field(&fields, ":method", "POST");
    put_field(&fields, ":scheme", "http");
    put_field(&fields, ":authority", "bench");
    put_field(&fields, ":path", "/v1/chat/completions");
    put_field(&fields, "content-type", "application/json");
    put_frame_head(b, fields.len, 1, 4, stream);
    strbuf_add(b, fields.p, fields.len);
    put_frame_head(b, strlen(body), 0, 1, stream);
    strbuf_add_str(b, body);
    strbuf_fini(&fields);
}

static void send_all(int fd, const struct strbuf *b) {
    size_t at = 0;
    while (at < b->len) {
        ssize_t n = send(fd, b->p + at, b->len - at, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) die("send");
        if (n > 0) at += (size_t)n;
    }
}

static void take_frame(struct load *l, struct connection *c, const uint8_t *f, size_t len,
                       uint32_t now) {
    uint32_t stream = ((uint32_t)f[5] << 24 | f[6] << 16 | f[7] << 8 | f[8]) & 0x7fffffff;
    int type = f[3], flags = f[4];
    struct strbuf out = {0};
    if (type == 0) {
        uint32_t i = (stream - 1) / 2;
        if (i >= l->config.per_connection) die("DATA of a stream that was not opened");
        scan(l, &c->streams[i], (const char *)f + FRAME_HEAD_BYTES, len, now);
        c->unseen += len;
    }
    if (type == 3 || type == 7) die("the router resets a stream or says GOAWAY");
    if (type == 4 && !(flags & 1)) put_frame_head(&out, 0, 4, 1, 0); // SETTINGS: ACK
    if (c->unseen > WINDOW_STEP) {
        put_window(&out, (uint32_t)c->unseen);
        c->unseen = 0;
    }
    if (out.len) send_all(c->fd, &out);
    strbuf_fini(&out);
}

static void take_frames(struct load *l, struct connection *c, const char *p, size_t n,
                        uint32_t now) {
    size_t at = 0;
    strbuf_add(&c->in, p, n);
    while (c->in.len - at >= FRAME_HEAD_BYTES) {
        const uint8_t *f = (const uint8_t *)c->in.p + at;
        size_t len = (size_t)f[0] << 16 | (size_t)f[1] << 8 | f[2];
        if (c->in.len - at < FRAME_HEAD_BYTES + len) break;
        take_frame(l, c, f, len, now);
        at += FRAME_HEAD_BYTES + len;
    }
    strbuf_drop_front(&c->in, at);
}

/* ---- connections ---- */

static int connect_to(uint16_t port) {
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || connect(fd, (struct sockaddr *)&sa, sizeof sa)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static const char BODY[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"stream\":true,"
                           "\"max_tokens\":4000,\"ignore_eos\":true,\"return_token_ids\":true}";

static void open_connection(struct load *l, struct connection *c) {
    struct strbuf b = {0};
    c->fd = connect_to(l->config.port);
    c->streams = mem_calloc(l->config.per_connection, sizeof *c->streams);
    if (l->config.head) {
        strbuf_add_str(&b, l->config.head);
    } else if (l->config.http2) {
        static const uint8_t wide[] = {0, 4, 0x7f, 0xff, 0xff, 0xff}; // INITIAL_WINDOW_SIZE
        strbuf_add_str(&b, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        put_frame_head(&b, sizeof wide, 4, 0, 0);
        strbuf_add(&b, wide, sizeof wide);
        put_window(&b, 0x7fffffff - 65535);
        for (uint32_t i = 0; i < l->config.per_connection; i++) put_request2(&b, 2 * i + 1, BODY);
    } else {
        strbuf_printf(&b,
                      "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: "
                      "application/json\r\nContent-Length: %zu\r\n\r\n%s",
                      sizeof BODY - 1, BODY);
    }
    send_all(c->fd, &b);
    strbuf_fini(&b);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &e)) die("epoll_ctl");
}

struct load *load_open(const struct load_config *config) {
    struct load *l = mem_calloc(1, sizeof *l);
    l->config = *config;
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->conn_count = config->streams / config->per_connection;
    l->conns = mem_calloc(l->conn_count, sizeof *l->conns);
    for (uint32_t i = 0; i < l->conn_count; i++) open_connection(l, &l->conns[i]);
    return l;
}

void load_close(struct load *l) {
    for (uint32_t i = 0; i < l->conn_count; i++) {
        close(l->conns[i].fd);
        free(l->conns[i].streams);
        strbuf_fini(&l->conns[i].in);
    }
    close(l->epoll);
    free(l->conns);
    free(l);
}

static void read_one(struct load *l, struct connection *c) {
    ssize_t n = recv(c->fd, l->buf, sizeof l->buf, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die("the router closed a connection");
    uint32_t now = load_tick_id();
    l->bytes += (uint64_t)n;
    if (l->config.http2)
        take_frames(l, c, l->buf, (size_t)n, now);
    else
        scan(l, &c->streams[0], l->buf, (size_t)n, now);
}

uint64_t load_run(struct load *l, double seconds) {
    struct epoll_event events[READS_MAX];
    uint64_t end = mono_us() + (uint64_t)(seconds * 1e6);
    l->events = l->bytes = 0;
    memset(l->ages, 0, sizeof l->ages);
    for (uint64_t now; (now = mono_us()) < end;) {
        int n = epoll_wait(l->epoll, events, READS_MAX, (int)((end - now) / 1000 + 1));
        for (int i = 0; i < n; i++) read_one(l, events[i].data.ptr);
    }
    return l->events;
}

double load_age_us(const struct load *l, double q) {
    uint64_t seen = 0;
    for (uint32_t i = 0; i < LOAD_TICKS; i++) {
        seen += l->ages[i];
        if ((double)seen >= q * (double)l->events) return (i + 0.5) * LOAD_TICK_US;
    }
    return 0;
}

uint64_t load_bytes(const struct load *l) {
    return l->bytes;
}

uint32_t load_begun(const struct load *l) {
    return l->begun;
}
