/* device: one open GPU: context, the engine's stream, modules and their kernels, and the ways between host and device.
 *
 * Inside kernels/ only; ops_cuda.c makes the table of operations of it. Everything is taken in cuda_open: after it nothing
 * here allocates but what cuda_alloc and cuda_host_alloc are asked for. All work goes to one stream of our own, never to
 * the legacy stream. The first call that fails is kept, and nothing is sent to the device after it: cuda_sync gives it back.
 * One thread; its context is made current by cuda_open. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/launch.h"

struct cpu_pool;
struct ops_copies;
struct ops_piece;

enum {
    CUDA_ALLOC_STEP = 2 << 20, // the driver takes memory in pages of this
    CUDA_STAGING_SLOTS = 4,
    CUDA_STAGING_BYTES = 4 << 20, // of a slot: a copy of it takes 75 us, the host's memcpy some 400
    CUDA_PINNED_BYTES = (CUDA_STAGING_SLOTS + 1) * CUDA_STAGING_BYTES,
};

struct cuda {
    const struct cuda_driver *d;
    struct cpu_pool *pool; // fills large pieces
    cu_device device;
    cu_ctx ctx;
    cu_stream stream;
    cu_module *modules;     // [cuda_images_count]
    cu_function *functions; // [cuda_kernels_count]; NULL: not for this GPU
    bool *overlaps;         // ... a launch of it may be early
    uint32_t from_ptx; // 0, or the architecture of the PTX that the driver compiled for this GPU
    struct cuda_arch arch;
    bool unified; // host and device share one memory
    char name[128], variant[16];
    // Pinned: slots for what goes to the device, one more for what comes back.
    unsigned char *staging;
    cu_event sent[CUDA_STAGING_SLOTS];
    bool pending[CUDA_STAGING_SLOTS];
    uint32_t slot, slot_used;
    // What operations use while they run.
    struct cuda_work work;
    uint64_t scratch_bytes; // of work
    uint32_t counters;      // of work
    bool measuring;         // launches are only asked what they need
    uint64_t need_scratch_bytes;
    uint32_t need_counters;
    // While launches are taken down (graph.h).
    bool recording, recording_early;
    uint64_t recorded;
    struct cuda_profile *profile; // NULL: nothing is timed
    struct cuda_marks *marks;     // NULL: they are off
    bool idle;                    // nothing was sent since the device was waited for
    uint64_t plan_room;           // without a device: what it would have
    bool failed;
    struct err trouble; // of the first call that failed
};

// device: its number among those the driver shows. On failure everything is given back.
int cuda_open(struct cuda *ret, const struct cuda_driver *d, uint32_t device, struct cpu_pool *pool,
              struct err *e);
void cuda_close(struct cuda *c); // zeroed is fine

int cuda_alloc(struct cuda *c, uint64_t bytes, const char *what, devptr *ret, struct err *e);
void cuda_free(struct cuda *c, devptr p);
// Pinned host memory that kernels read in place, at *ret_device.
int cuda_host_alloc(struct cuda *c, uint64_t bytes, const char *what, void **ret,
                    devptr *ret_device, struct err *e);
void cuda_host_free(struct cuda *c, void *p);
uint64_t cuda_free_bytes(struct cuda *c);

void cuda_write(struct cuda *c, devptr dst, const void *src,
                uint64_t bytes);                                       // src may change after
void cuda_read(struct cuda *c, void *dst, devptr src, uint64_t bytes); // waits
void cuda_read_pieces(struct cuda *c, const struct ops_piece *v, uint32_t count);
void cuda_copy(struct cuda *c, devptr dst, devptr src, uint64_t bytes);
void cuda_copy_each(struct cuda *c, const struct ops_copies *o);
void cuda_fill(struct cuda *c, devptr dst, uint32_t word, uint64_t bytes); // bytes: a multiple of 4
int cuda_sync(struct cuda *c, struct err *e);

// Keeps the first result that is not success: nothing is sent after it.
void cuda_check(struct cuda *c, cu_result r, const char *what);
// Sends the launches of an operation, or notes what they need while measuring. op names it in errors.
void cuda_launch(struct cuda *c, const char *op, const struct launch_list *l);
