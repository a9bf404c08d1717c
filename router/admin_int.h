/* admin_int: what the files of administration share: admin.c carries calls between the ops thread and the request loop,
 * admin_read.c reads what a call says, admin_workers.c and admin_requests.c are the calls. See admin.h. */
#pragma once
#include <h2o.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "common/strbuf.h"
#include "router/apierr.h"
#include "router/control.h"

struct http_call;
struct send;

enum {
    ADMIN_WAIT_S_MAX = 3600, // of a call that waits
    ADMIN_NAME_BYTES = 128,
};

struct job {
    struct admin *admin;
    TAILQ_ENTRY(job) link; // of those that wait for their next look
    // The ops thread's.
    struct send *send; // NULL: the client has gone
    uint64_t until_ms; // a call that waits: until then
    char wait_state[24];
    // From the call; then the request loop's, until it is posted back.
    void (*run)(struct server *s, struct job *j);
    uint32_t rank, operation, limit;
    enum control_verb verb;
    struct control_how how;
    bool on;
    int32_t only_worker; // of a list of requests; -1: any
    char name[ADMIN_NAME_BYTES];
    // The answer.
    bool refused, again; // again: what is waited for has not come
    bool worker_object;  // the answer is the worker's object, from the snapshot
    struct apierr e;
    int status;
    struct strbuf out;
};

// admin.c; the ops thread
struct job *admin_job_new(struct http_call *c, void (*run)(struct server *, struct job *));
void admin_job_free(struct job *j);
void admin_job_begin(struct job *j, struct http_call *c); // to the loop; the answer frees it
void admin_job_refuse(struct job *j, struct http_call *c, const struct apierr *e);

// admin_read.c. Failures fill e and return ST_INVAL.
int admin_parse_body(const struct http_call *c, json_t **ret,
                     struct apierr *e); // an empty one is {}: NULL
// Fields that are not known are refused: a mistyped "force" must not drain the last worker. known ends with NULL.
int admin_check_keys(const json_t *body, const char *const *known, struct apierr *e);
int admin_read_how(const struct http_call *c, struct control_how *how, struct apierr *e);
bool admin_take_number(h2o_iovec_t text, uint32_t max, uint32_t *ret);
// A number of the query; absent leaves *ret.
int admin_query_number(const struct http_call *c, const char *key, uint32_t max, uint32_t *ret,
                       struct apierr *e);
