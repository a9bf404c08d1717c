/* http: one HTTP request on its way in: head checks, the endpoint table, dispatch. What goes out is send.h's.
 *
 * A path matches exactly, after the query is cut off, with no normalising. Every request gets an http_call that lives
 * in the request's pool until the reply is over or the client has gone. Each listener's loop thread. */
#pragma once
#include <h2o.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "router/access.h"

struct apierr;
struct conn;
struct http_call;
struct key;
struct listener;

enum {
    HTTP_REQUEST_ID_BYTES = 129, // 128 characters and the NUL
};

enum http_method { HTTP_GET = 1, HTTP_POST = 2, HTTP_PUT = 4, HTTP_DELETE = 8 }; // GET: HEAD too
enum http_access {
    HTTP_KEYED,   // with a key, where there are keys
    HTTP_OPEN,    // always
    HTTP_METRICS, // without a key unless ops.metrics_auth
    HTTP_ADMIN,   // with an admin key; without any in the set: on a loopback or unix listener alone
};

struct http_endpoint {
    const char *path;
    bool prefix;      // path and something behind it
    unsigned methods; // of enum http_method, or'ed
    void (*handle)(struct http_call *c);
    const char *name; // for metrics and the access log: one of a fixed set
    enum http_access access;
};

struct http_call {
    h2o_req_t *req;
    struct listener *listener;
    struct conn *conn;
    const char *remote; // who asks, for the log: the peer, or the client behind a trusted proxy
    const struct http_endpoint *endpoint; // NULL: none
    void *app;                            // the listener's owner
    h2o_iovec_t target; // path and query; of an absolute-form target what is behind the authority
    struct key *key;    // NULL: none was asked for
    uint64_t begun_us;  // monotonic: the whole body is here
    int status;         // sent, or 499; 0: none yet
    size_t bytes_out;
    struct access_facts facts;
    bool has_client_id; // request_id came with X-Request-Id
    char request_id[HTTP_REQUEST_ID_BYTES];
};

enum http_method http_method_of(const struct http_call *c); // 0: none of them
// 405, naming those that are.
void http_wrong_method(struct http_call *c, unsigned methods);

// The handler of h2o: always takes the request.
int http_on_req(h2o_handler_t *self, h2o_req_t *req);

struct http_handler { // what listen.c registers
    h2o_handler_t super;
    struct listener *listener;
    void *app;
    const struct http_endpoint *endpoints;
    size_t endpoint_count;
};

// A request header's value, or {NULL, 0}. name in lower case.
h2o_iovec_t http_header(const h2o_req_t *req, const char *name);
// What stands behind prefix in the path of a prefix endpoint, or in the query: "verbose" of "?verbose=1". {NULL,0}: none.
h2o_iovec_t http_path_rest(const struct http_call *c);
h2o_iovec_t http_query(const struct http_call *c, const char *key);
// Media type, charset and encoding of a JSON body.
int http_check_json_type(const struct http_call *c, struct apierr *e);
