/* httpc: a plain HTTP/1.1 client over libuv, for the subcommands that talk to a running server. One request a connection.
 *
 * No TLS, no redirects, no proxies. Everything runs on the loop's thread. The program must ignore SIGPIPE. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

struct err;
struct strbuf;

enum { HTTPC_ADDRESSES_MAX = 8 };

// Where a server is; resolved once.
struct httpc_address {
    char *text;                                      // as it was given
    char *host;                                      // of the Host header
    char *prefix;                                    // goes before each path; "" mostly
    char *unix_path;                                 // NULL: TCP
    struct sockaddr_storage at[HTTPC_ADDRESSES_MAX]; // tried in order
    unsigned count;
};

// [http://]HOST:PORT[/prefix] or unix:/path. A prefix's "/v1" and trailing slash are cut off: paths bring their own.
// ST_INVAL names what was wanted. Blocks while it resolves a name.
int httpc_address_parse(struct httpc_address *ret, const char *text, struct err *e);
void httpc_address_fini(struct httpc_address *a);

struct httpc_request {
    const char *method, *path;
    const char *key;  // bearer token; NULL or "": none
    const char *body; // JSON, copied; NULL: none
    size_t body_len;
    uint64_t stall_ms; // ends with ST_TIMEOUT when nothing has come for this long
};

struct httpc_events {
    void *arg;
    void (*on_head)(void *arg, int status);                // may be NULL
    void (*on_body)(void *arg, const char *p, size_t len); // as it comes
    // The last call: ST_OK when the reply was whole, else e says what went wrong.
    void (*on_end)(void *arg, int st, const struct err *e);
};

struct httpc; // one request; frees itself after on_end
// Starts to connect; every trouble is told by on_end, never within this call.
struct httpc *httpc_start(uv_loop_t *loop, const struct httpc_address *to,
                          const struct httpc_request *r, const struct httpc_events *events);
// Ends it from on_head or on_body: on_end comes with ST_CANCELLED, in a later turn.
void httpc_cancel(struct httpc *c);
// mono_ns() when the connection stood and the request went out; 0 before.
uint64_t httpc_sent_ns(const struct httpc *c);
// mono_ns() of the read whose bytes on_body is being given: one read may give it several pieces.
uint64_t httpc_read_ns(const struct httpc *c);

// One request on a loop of its own: blocks until the reply is whole. Any status is ST_OK.
int httpc_fetch(const struct httpc_address *to, const struct httpc_request *r, int *ret_status,
                struct strbuf *ret_body, struct err *e);
