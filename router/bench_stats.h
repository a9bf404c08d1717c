/* bench_stats: the few statistics of the benches. Pure. */
#pragma once
#include <stddef.h>
#include <stdint.h>

// A growable list of numbers. Zero-initialised is empty and valid.
struct bench_list {
    double *v;
    size_t count, cap;
};
void bench_list_fini(struct bench_list *l);
void bench_list_add(struct bench_list *l, double x); // NAN is left out: nothing was measured
// The middle one, or the mean of the two in the middle; NAN when there is none. Sorts the list.
double bench_list_median(struct bench_list *l);

// One stream as it came: when ids arrived, and how many. Times in ns of one clock.
struct bench_arrivals {
    uint64_t first_ns, last_ns; // of ids; 0 while none came
    uint32_t ids, first_ids;    // in all, in the first arrival
    uint32_t rounds;            // in which they were made, as far as events tell
};
// One read brought the ids of so many rounds (both above 0). The time since the read before, spread evenly over its
// rounds, goes to gaps (NULL: nobody wants it) in ms, once for each: how reads cut a stream is chance.
void bench_arrivals_add(struct bench_arrivals *a, uint64_t now_ns, uint32_t ids, uint32_t rounds,
                        struct bench_list *gaps);
// Ids and the time in which they came. Sums of these give a mean rate: all ids by all the time, so that a reply whose
// ids came in one heap (a busy machine) cannot pass for an endlessly fast one.
struct bench_rate {
    double ids, seconds;
};
void bench_rate_add(struct bench_rate *sum, struct bench_rate r);
double bench_rate_per_s(struct bench_rate r); // NAN when no time passed

// Between the first id of any of these streams, which were sent at once, and the last of any; what came with the very
// first arrival is not counted. Nothing for a single arrival.
struct bench_rate bench_arrivals_rate(const struct bench_arrivals *v, size_t count);
// The same ids from the time sent_ns on, all counted: what the client sees, fills included.
struct bench_rate bench_arrivals_wall(const struct bench_arrivals *v, size_t count,
                                      uint64_t sent_ns);
