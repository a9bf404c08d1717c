/* service: see service.h. */
#include "worker/service.h"
#include "common/log.h"
#include "common/notify.h"
#include "worker/runner.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    EXTEND_S = 120,  // of the manager's patience, with each per cent that is loaded
    ALIVE_MS = 1000, // between two renewals of the file
};

static void renew(struct service *v, uint64_t now_ms) {
    if (!v->alive || !*v->alive || (v->alive_ms && now_ms - v->alive_ms < ALIVE_MS)) return;
    int fd = open(v->alive, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || futimens(fd, NULL))
        log_warn("alive", "file=\"%s\" reason=\"%s\"", v->alive, strerror(errno));
    if (fd >= 0) close(fd);
    v->alive_ms = now_ms;
}

static void tell_loading(struct service *v, const struct runner_status *s, uint64_t now_ms) {
    if (s->load_fraction < v->load_fraction + 0.01 && v->load_fraction > 0) return;
    renew(v, now_ms);
    v->load_fraction = s->load_fraction > 0 ? s->load_fraction : 1e-9;
    notify_send("STATUS=loading, %.0f%%\nEXTEND_TIMEOUT_USEC=%d000000", 100 * s->load_fraction,
                EXTEND_S);
}

static bool moves(struct service *v, const struct runner_status *s, double progress_s,
                  uint64_t now_ms) {
    if (!v->progress_ms || s->progress != v->progress || s->streams_running == 0) {
        v->progress = s->progress;
        v->progress_ms = now_ms;
    }
    double limit_ms = progress_s * 1000 + 2 * (s->round_ms < 1e6 ? s->round_ms : 1e6);
    return (double)(now_ms - v->progress_ms) <= limit_ms;
}

void service_tend(struct service *v, const struct runner_status *s, double progress_s,
                  uint64_t now_ms) {
    if (s->state == RUNNER_LOADING) {
        tell_loading(v, s, now_ms);
        return;
    }
    if (s->state != RUNNER_LOADED) return;
    if (!v->ready) notify_send("READY=1\nSTATUS=loaded");
    v->ready = true;
    if (!moves(v, s, progress_s, now_ms)) return;
    renew(v, now_ms);
    uint64_t every_ms = notify_watchdog_ms();
    if (!every_ms || now_ms - v->beat_ms < every_ms) return;
    v->beat_ms = now_ms;
    notify_send("WATCHDOG=1\nSTATUS=%u streams, %llu tokens", s->streams_running,
                (unsigned long long)s->tokens);
}
