/* mono: the monotonic clock, and the wall clock for stamps. Any thread. */
#pragma once
#include <stdint.h>

uint64_t mono_ns(void);
static inline uint64_t mono_us(void) {
    return mono_ns() / 1000;
}
static inline uint64_t mono_ms(void) {
    return mono_ns() / 1000000;
}
// From then to now; 0 when then is the later: what began after its caller had looked at the clock.
static inline uint64_t mono_since(uint64_t then, uint64_t now) {
    return now > then ? now - then : 0;
}
int64_t wall_s(void); // seconds since 1970
