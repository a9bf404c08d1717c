/* api_status: liveness, readiness, metrics, version and the list of workers, for both listeners.
 *
 * Reads only a snapshot and atomics: no worker is asked and no lock shared. The app of a listener that serves these
 * begins with a struct status_source. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct http_call;
struct metrics;
struct snapshots;

struct admin;
struct strbuf;

struct status_source {
    struct metrics *metrics;
    struct snapshots *snapshots;
    struct admin *admin; // of the ops listener
    bool is_writer;      // on the request loop, which publishes the snapshots
};

void api_status_livez(struct http_call *c);
void api_status_readyz(struct http_call *c);
void api_status_health(struct http_call *c);
void api_status_metrics(struct http_call *c);
void api_status_version(struct http_call *c);
void api_status_workers(struct http_call *c); // GET /admin/v1/workers

struct snapshot;
const struct snapshot *api_status_snapshot(const struct status_source *s);
// Appends a worker's object; its state goes to ret_state (24 bytes). *ret_stays_down: it has failed and nobody starts it again
// by himself. False: no such rank.
bool api_status_add_worker(const struct status_source *s, uint32_t rank, struct strbuf *out,
                           char ret_state[24], bool *ret_stays_down);
