/* cpu_pool: threads that share one loop at a time.
 *
 * cpu_pool_run calls fn for every unit of 0..units-1, each once, on the caller and the pool's threads, and returns when
 * all are done. Which thread takes a unit is chance, so a unit must not care; a unit must not call cpu_pool_run.
 * An idle thread spins for some microseconds, then sleeps in the kernel: a pool without work costs nothing. A thread that
 * is late (a busy machine) is not waited for unless it holds a unit.
 *
 * cpu_pool_run is for one caller at a time. */
#pragma once
#include <stdint.h>

struct err;
struct cpu_pool; // defined in cpu_pool.c

enum { CPU_POOL_THREADS_MAX = 256 };

// threads counts the caller: 1 starts none. 0: one per CPU this process may use. ST_INVAL, ST_NOMEM.
int cpu_pool_new(struct cpu_pool **ret, uint32_t threads, struct err *e);
void cpu_pool_free(struct cpu_pool *p); // NULL is fine
uint32_t cpu_pool_threads(const struct cpu_pool *p);

// thread: 0 is the caller, below cpu_pool_threads; never two units at once with the same number.
typedef void cpu_pool_fn(void *arg, uint32_t unit, uint32_t thread);
void cpu_pool_run(struct cpu_pool *p, uint32_t units, cpu_pool_fn *fn, void *arg);
