/* resume: see resume.h. */
#include "router/resume.h"

#include <string.h>

bool resume_met(struct resume_deaths *d, uint64_t death) {
    d->count += d->count == 0 || d->last != death;
    d->last = death;
    return d->count < RESUME_DEATHS_MAX;
}

void resume_lost(struct resume *r, enum metric_cause cause, uint64_t now_us) {
    r->cause = cause;
    if (!r->since_ms) r->paused_us = now_us;
    r->since_ms = now_us / 1000;
}

uint64_t resume_moved(struct resume *r, const char kind[FINGERPRINT_DIGEST_BYTES],
                      uint64_t now_us) {
    if (!r->kind[0]) memcpy(r->kind, kind, FINGERPRINT_DIGEST_BYTES);
    if (!r->since_ms) return 0;
    r->since_ms = 0;
    r->times++;
    return now_us - r->paused_us;
}

bool resume_fits(const struct resume *r, const char kind[FINGERPRINT_DIGEST_BYTES]) {
    return !r->kind[0] || !strcmp(r->kind, kind);
}
