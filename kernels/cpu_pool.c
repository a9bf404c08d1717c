/* cpu_pool: see cpu_pool.h.
 *
 * A job is open from the moment `open` holds its number until its units are done. A thread enters by counting itself in
 * `inside` and then looking at `open` again; the caller closes the job and then waits for `inside` to reach 0. Both
 * sides write first and read second, sequentially consistent, so either the thread sees the job closed and leaves, or the
 * caller sees the thread and waits: nobody is left reading a job that has been replaced. */
#include "kernels/cpu_pool.h"
#include "common/err.h"
#include "common/mem.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_NS = 40000,   // about the longest pause between two operations of a round
    SPIN_CHECK = 64,   // looks between two looks at the clock
    WAIT_LOOKS = 2000, // of the caller for the last unit, before it lets others run
};

struct worker {
    struct cpu_pool *pool;
    pthread_t thread;
    uint32_t number;
};

// A thread's share of the units: neighbours, in order, so that what it fetched ahead serves itself. Who has finished his
// own takes from the others'.
struct share {
    _Alignas(64) _Atomic uint32_t next;
    uint32_t end;
};

struct cpu_pool {
    uint32_t threads;
    struct worker *workers; // threads - 1
    uint32_t started;
    uint32_t job; // number of the last job; the caller's alone
    cpu_pool_fn *fn;
    void *arg;
    struct share *shares;               // [threads]
    _Alignas(64) _Atomic uint32_t open; // number of the open job; 0: none
    _Atomic uint32_t wake;              // futex: changes with every job
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    _Alignas(64) _Atomic uint32_t inside;
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_units(struct cpu_pool *p, uint32_t number) {
    for (uint32_t i = 0; i < p->threads; i++) {
        struct share *share = &p->shares[(number + i) % p->threads];
        for (;;) {
            uint32_t unit = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
            if (unit >= share->end) break;
            p->fn(p->arg, unit, number);
        }
    }
}

static void deal(struct cpu_pool *p, uint32_t units) {
    uint32_t from = 0;
    for (uint32_t i = 0; i < p->threads; i++) {
        uint32_t end = (uint32_t)((uint64_t)units * (i + 1) / p->threads);
        atomic_store_explicit(&p->shares[i].next, from, memory_order_relaxed);
        p->shares[i].end = from = end;
    }
}

// Sleeps while no job has been opened since `seen` was read.
static void sleep_on(struct cpu_pool *p, uint32_t seen) {
    atomic_fetch_add(&p->sleepers, 1);
    if (!atomic_load(&p->open) && !atomic_load(&p->stop))
        syscall(SYS_futex, &p->wake, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&p->sleepers, 1);
}

// Waits for a job other than `last`; its number, or 0 when the pool stops.
static uint32_t wait_for_job(struct cpu_pool *p, uint32_t last) {
    uint64_t until = now_ns() + SPIN_NS;
    for (uint32_t looks = 1;; looks++) {
        uint32_t seen = atomic_load(&p->wake);
        uint32_t open = atomic_load_explicit(&p->open, memory_order_acquire);
        if (open && open != last) return open;
        if (atomic_load(&p->stop)) return 0;
        relax();
        if (looks % SPIN_CHECK || now_ns() < until) continue;
        sleep_on(p, seen);
        until = now_ns() + SPIN_NS;
    }
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct cpu_pool *p = w->pool;
    uint32_t last = 0;
    for (;;) {
        uint32_t job = wait_for_job(p, last);
        if (!job) return NULL;
        atomic_fetch_add(&p->inside, 1);
        last = atomic_load(&p->open); // it may have been closed, or another opened, meanwhile
        if (last) take_units(p, w->number);
        atomic_fetch_sub(&p->inside, 1);
    }
}

static void wake_all(struct cpu_pool *p) {
    atomic_fetch_add(&p->wake, 1);
    if (atomic_load(&p->sleepers))
        syscall(SYS_futex, &p->wake, FUTEX_WAKE_PRIVATE, (int)p->threads, NULL, NULL, 0);
}

static void close_job(struct cpu_pool *p) {
    atomic_store(&p->open, 0);
    for (uint32_t looks = 1; atomic_load(&p->inside); looks++)
        if (looks % WAIT_LOOKS)
            relax();
        else
            sched_yield();
}

void cpu_pool_run(struct cpu_pool *p, uint32_t units, cpu_pool_fn *fn, void *arg) {
    if (p->started == 0 || units <= 1) {
        for (uint32_t i = 0; i < units; i++) fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    deal(p, units);
    if (++p->job == 0) p->job = 1;
    atomic_store(&p->open, p->job);
    wake_all(p);
    take_units(p, 0);
    close_job(p);
}

uint32_t cpu_pool_threads(const struct cpu_pool *p) {
    return p->threads;
}

static uint32_t cpus_allowed(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > CPU_POOL_THREADS_MAX ? CPU_POOL_THREADS_MAX : (uint32_t)n;
}

static int start_worker(struct cpu_pool *p, uint32_t idx, struct err *e) {
    p->workers[idx] = (struct worker){.pool = p, .number = idx + 1};
    int rc = pthread_create(&p->workers[idx].thread, NULL, worker_main, &p->workers[idx]);
    if (rc)
        return err_set(e, ST_NOMEM, "start thread %u of %u: %s", idx + 2, p->threads, strerror(rc));
    p->started++;
    return ST_OK;
}

int cpu_pool_new(struct cpu_pool **ret, uint32_t threads, struct err *e) {
    if (threads > CPU_POOL_THREADS_MAX)
        return err_set(e, ST_INVAL, "threads: wanted at most %d, found %u", CPU_POOL_THREADS_MAX,
                       threads);
    struct cpu_pool *p = aligned_alloc(64, sizeof *p);
    if (!p) return err_set(e, ST_NOMEM, "no memory for the thread pool");
    memset(p, 0, sizeof *p);
    p->threads = threads ? threads : cpus_allowed();
    p->workers = mem_calloc(p->threads, sizeof *p->workers);
    p->shares = aligned_alloc(64, p->threads * sizeof *p->shares);
    if (!p->shares) {
        cpu_pool_free(p);
        return err_set(e, ST_NOMEM, "no memory for the thread pool");
    }
    for (uint32_t i = 0; i + 1 < p->threads; i++) {
        int st = start_worker(p, i, e);
        if (st) {
            cpu_pool_free(p);
            return st;
        }
    }
    *ret = p;
    return ST_OK;
}

void cpu_pool_free(struct cpu_pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->wake, 1);
    syscall(SYS_futex, &p->wake, FUTEX_WAKE_PRIVATE, (int)p->threads, NULL, NULL, 0);
    for (uint32_t i = 0; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
    free(p->workers);
    free(p->shares);
    free(p);
}
