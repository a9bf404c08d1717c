/* cpu_pool: every unit once, for any number of threads, run after run; and nothing of the machine when idle. */
#include "common/err.h"
#include "kernels/cpu_pool.h"
#include "tests/lib/test.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { UNITS = 1000 };

struct tally {
    _Atomic uint32_t done[UNITS];
    _Atomic uint32_t busy[CPU_POOL_THREADS_MAX]; // units a thread has at once
    _Atomic uint32_t overlaps;
    uint64_t plain[UNITS]; // written without atomics: the pool must order it against the caller
};

static void count_unit(void *arg, uint32_t unit, uint32_t thread) {
    struct tally *t = arg;
    if (atomic_fetch_add(&t->busy[thread], 1)) atomic_fetch_add(&t->overlaps, 1);
    atomic_fetch_add(&t->done[unit], 1);
    t->plain[unit] += unit;
    atomic_fetch_sub(&t->busy[thread], 1);
}

TEST(every_unit_runs_once_in_every_run) {
    for (uint32_t threads = 1; threads <= 5; threads++) {
        static struct tally t;
        struct cpu_pool *p = NULL;
        struct err e;
        memset(&t, 0, sizeof t);
        CHECK_OK(cpu_pool_new(&p, threads, &e), e);
        CHECK_EQ(cpu_pool_threads(p), threads);
        uint32_t expect[UNITS] = {0};
        for (uint32_t run = 0; run < 400; run++) {
            uint32_t units = run * 37 % (UNITS + 1);
            cpu_pool_run(p, units, count_unit, &t);
            for (uint32_t i = 0; i < units; i++) expect[i]++;
        }
        for (uint32_t i = 0; i < UNITS; i++) {
            CHECK_EQ(t.done[i], expect[i]);
            CHECK_EQ(t.plain[i], (uint64_t)expect[i] * i);
        }
        CHECK_EQ(t.overlaps, 0);
        cpu_pool_free(p);
    }
}

TEST(a_pool_can_end_at_once_and_refuses_what_it_cannot_hold) {
    struct cpu_pool *p = NULL;
    struct err e = {0};
    for (int i = 0; i < 50; i++) {
        CHECK_OK(cpu_pool_new(&p, 4, &e), e);
        cpu_pool_free(p);
    }
    cpu_pool_free(NULL);
    p = NULL;
    CHECK_EQ(cpu_pool_new(&p, CPU_POOL_THREADS_MAX + 1, &e), ST_INVAL);
    CHECK(p == NULL);
    CHECK_HAS(e.msg, "threads");
    CHECK_OK(cpu_pool_new(&p, 0, &e), e);
    CHECK(cpu_pool_threads(p) >= 1);
    cpu_pool_free(p);
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// The threads must be asleep soon after the last run: a fifth of a second of waiting may cost a hundredth.
TEST(an_idle_pool_takes_no_processor_time) {
    static struct tally t;
    struct cpu_pool *p = NULL;
    struct err e;
    CHECK_OK(cpu_pool_new(&p, 3, &e), e);
    cpu_pool_run(p, UNITS, count_unit, &t);
    double before = cpu_seconds();
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    CHECK(cpu_seconds() - before < 0.02);
    cpu_pool_run(p, UNITS, count_unit, &t); // and they wake again
    CHECK_EQ(t.done[UNITS - 1], 2);
    cpu_pool_free(p);
}
