/* launch: a launch as a value. An operation's plan (<op>_plan.c) turns its arguments into launches: plain C, no call of the
 * driver, no global; the same arguments give the same launches. Print one and you know it.
 *
 * What decides bits (order of sums, K split, count of warps) follows the weight's shape alone, never the rows of the
 * call or the count of multiprocessors. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/types.h"

struct cuda_arch {
    uint32_t sm;         // 80, 86, 89, 90, 100, 120
    uint32_t shared_max; // bytes that a block may have, static ones counted
    uint32_t sm_count;   // for grids that share work; never for what decides bits
};

// The architectures that kernels are compiled for, ending with sm 0. sm_count is one of a card of that kind.
extern const struct cuda_arch cuda_archs[];

/* Device memory for what lives within one operation: partial sums, rotated inputs, and counters that the last block
 * of a launch sets back to 0, so that they are 0 between any two launches. Operations follow one another on one
 * stream, so they all share it. */
struct cuda_work {
    devptr scratch;  // of list.scratch_bytes, aligned to 256
    devptr counters; // of list.counters u32
};

enum {
    LAUNCH_PARAMS_MAX = 512, // bytes of a kernel's one argument
    LAUNCHES_MAX = 17,       // of one operation
};

struct launch {
    const char *kernel; // a literal: its name in the fatbin
    uint32_t grid[3], block[3];
    uint32_t shared_bytes; // dynamic
    bool early; // may start before the one before has ended: the kernel calls device_wait_prior
    uint32_t params_bytes;
    _Alignas(16) unsigned char params[LAUNCH_PARAMS_MAX]; // the kernel's one argument, by value
};

struct launch_list {
    uint32_t count;
    uint64_t scratch_bytes; // what the launches use of cuda_work, with these arguments
    uint32_t counters;
    struct launch launches[LAUNCHES_MAX];
};

/* A plan is
 *     void <op>_plan(const struct <op>_args *a, const struct cuda_arch *arch, const struct cuda_work *w,
 *                    struct launch_list *ret);
 * It sets ret->scratch_bytes and ret->counters when it uses w, and adds launches with launch_add. ret is empty at the call. w's
 * addresses are 0 when only the sizes are asked for. */

// Adds a launch: grid and block of 1, the argument copied. The caller sets grid, block and shared_bytes.
struct launch *launch_add(struct launch_list *l, const char *kernel, const void *params,
                          uint32_t params_bytes);
