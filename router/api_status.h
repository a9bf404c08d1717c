/* api_status: liveness, readiness, metrics, version and the list of workers, for both listeners.
 *
 * Reads only a snapshot and atomics: no worker is asked and no lock shared. The app of a listener that serves these
 * begins with a struct status_source. */
#pragma once
#include <stdbool.h>

struct config;
struct http_call;
struct metrics;
struct snapshots;

struct status_source {
    const struct config *config;
    struct metrics *metrics;
    struct snapshots *snapshots;
    bool is_writer; // on the request loop, which publishes the snapshots
};

void api_status_livez(struct http_call *c);
void api_status_readyz(struct http_call *c);
void api_status_health(struct http_call *c);
void api_status_metrics(struct http_call *c);
void api_status_version(struct http_call *c);
void api_status_workers(struct http_call *c); // GET /admin/v1/workers
void api_status_worker(struct http_call *c);  // GET /admin/v1/workers/{rank}
