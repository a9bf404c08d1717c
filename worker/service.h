/* service: what a worker tells the service manager that started it (common/notify.h): how far it has loaded, that it is ready,
 * and that it lives. The sign of life is tied to the engine's progress, by the rule by which the router calls a worker hung:
 * with streams and no progress there is none, and the manager kills and restarts it. For managers that run probes instead, the
 * same sign renews a file's time of change. Link thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct runner_status;

struct service {       // zero-initialised but for the file
    const char *alive; // path; NULL or "": none
    uint64_t alive_ms; // renewed then
    bool ready;
    double load_fraction; // as last told
    uint64_t beat_ms;     // the last sign of life
    uint64_t progress, progress_ms;
};

// At least once a second. progress_s: how long work may stand still.
void service_tend(struct service *v, const struct runner_status *s, double progress_s,
                  uint64_t now_ms);
