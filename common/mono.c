/* mono: see mono.h. */
#include "common/mono.h"

#include <time.h>

static const uint64_t *source; // written before threads start

uint64_t mono_ns(void) {
    if (source) return __atomic_load_n(source, __ATOMIC_RELAXED);
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int64_t wall_s(void) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return ts.tv_sec;
}

void mono_set_source(const uint64_t *ns) {
    source = ns;
}
