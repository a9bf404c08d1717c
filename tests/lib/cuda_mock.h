/* cuda_mock: the CUDA driver's table over host memory: copies and fills are done, launches are checked and counted.
 *
 * One at a time in a process; one thread. It refuses what a driver would, and what we promise never to do: work on the legacy
 * stream, a launch that does not fit, memory outside what was allocated, a handle given back twice. `wrong` holds the first
 * of these. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/launch.h"

struct cuda_mock_config {
    struct cuda_arch arch; // sm 0: an sm_90 with 132 multiprocessors
    uint64_t memory_bytes; // of the card; 0: 16 GiB
    uint64_t pinned_max;   // of the host; 0: no limit
    uint64_t graph_bytes;  // of the card, that each graph takes
    uint64_t hidden_bytes; // that the card says are free and does not give
    bool unified;
    bool from_ptx;      // its driver takes the PTX alone
    uint32_t devices;   // 0: one
    uint64_t fail_call; // from 1: this call fails, and no other; 0: none
};

struct cuda_mock_counts {
    uint64_t calls; // that can fail
    uint64_t allocs, host_allocs, memsets, launches, copies, syncs, streams, graphs;
    uint64_t early_launches; // asked for, in captures too
    uint64_t graph_launches; // of whole graphs; their launches count as launches
    uint64_t launched; // a hash of all launches so far: kernels, sizes, addresses, in their order
    uint64_t device_bytes, pinned_bytes;    // live
    uint64_t handles;                       // live: contexts, modules, streams, events
    cu_stream memset_stream, launch_stream; // of the last
    char wrong[256];                        // "": nothing
};

void cuda_mock_open(struct cuda_driver *ret, const struct cuda_mock_config *c);
struct cuda_mock_counts cuda_mock_counts(void);
void cuda_mock_forget(void);                     // what was launched begins anew
uint64_t cuda_mock_launches(const char *kernel); // whose names begin so
