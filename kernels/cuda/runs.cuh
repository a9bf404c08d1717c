/* runs: which run a row of a round belongs to. */
#pragma once
#include "kernels/cuda/device.cuh"

// Runs stand in ascending order of their first row and cover all rows: the last whose first row is not behind t.
DEVICE_FN const struct run *runs_find(devptr runs, uint32_t count, uint32_t t) {
    const struct run *r = device_ptr<const struct run>(runs);
    uint32_t low = 0, high = count;
    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;
        if (r[mid].row <= t)
            low = mid;
        else
            high = mid;
    }
    return r + low;
}
