/* bench_limits: what the machine allows, measured beside what the engine takes. For the benches; CPU backend only. */
#pragma once
#include <stdint.h>

struct engine_info;
struct err;

// What a round must at least do: `rows` rows of `streams` streams whose caches hold `context` positions each.
struct bench_work {
    // Weights once, of the routed experts as many as rows that spread evenly meet; each stream's state read and written, its keys and
    // values read.
    double bytes;
    // A multiply-add for each parameter that a row meets; three for each number of a state and row; attention's over the context.
    double macs;
};
struct bench_work bench_work_of(const struct engine_info *info, uint32_t rows, uint32_t streams,
                                uint32_t context);

// Bytes a second at which that many threads read a block of `bytes` again and again. ST_NOMEM.
int bench_read_speed(double *ret, double bytes, uint32_t threads, struct err *e);
// Fused multiply-adds a second that as many threads do in registers, with the widest instructions the machine has.
int bench_mac_speed(double *ret, uint32_t threads, struct err *e);

// Seconds that the work takes at least: the longer of its bytes at read_speed and its multiply-adds at mac_speed.
double bench_limit_s(const struct bench_work *w, double read_speed, double mac_speed);
