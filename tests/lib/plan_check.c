/* plan_check: see plan_check.h. */
#include "tests/lib/plan_check.h"
#include "kernels/cuda/fatbin.h"
#include "tests/lib/test.h"

#include <string.h>

enum { BLOCK_THREADS_MAX = 1024, GRID_YZ_MAX = 65535, PORTABLE_SHARED = 48 << 10 };

struct launch_list *plan_check_begin(void) {
    static struct launch_list l;
    memset(&l, 0, sizeof l);
    return &l;
}

static void check_shape(const struct launch *l, const struct cuda_arch *arch) {
    uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
    CHECK(threads >= 1 && threads <= BLOCK_THREADS_MAX && l->block[2] <= 64);
    CHECK(l->grid[0] >= 1 && l->grid[0] <= INT32_MAX);
    CHECK(l->grid[1] >= 1 && l->grid[1] <= GRID_YZ_MAX);
    CHECK(l->grid[2] >= 1 && l->grid[2] <= GRID_YZ_MAX);
    CHECK(l->shared_bytes <= arch->shared_max);
}

static uint32_t check_launch(const struct launch *l, const struct cuda_arch *arch, const char *op) {
    check_shape(l, arch);
    if (!cuda_kernels_count) return 0; // a build without nvcc
    const struct cuda_kernel *k = cuda_kernel_find(l->kernel);
    if (!k) test_fail(__FILE__, __LINE__, "%s: the fatbin has no kernel '%s'", op, l->kernel);
    const struct cuda_kernel_arch *on = cuda_kernel_on(k, arch->sm);
    if (!on) return 0;
    CHECK_EQ(on->params_bytes, l->params_bytes);
    if (on->shared_bytes + l->shared_bytes > arch->shared_max || on->shared_bytes > PORTABLE_SHARED)
        test_fail(__FILE__, __LINE__, "%s: '%s' on sm_%u: %u + %u bytes shared of %u", op,
                  l->kernel, arch->sm, on->shared_bytes, l->shared_bytes, arch->shared_max);
    if (l->early && arch->sm >= 90 && !on->waits)
        test_fail(__FILE__, __LINE__,
                  "%s: '%s' on sm_%u: early, and never waits for the launch before", op, l->kernel,
                  arch->sm);
    return 1;
}

uint32_t plan_check(const struct launch_list *l, const struct cuda_arch *arch, const char *op) {
    uint32_t compiled = 0;
    CHECK(l->count >= 1 && l->count <= LAUNCHES_MAX);
    for (uint32_t i = 0; i < l->count; i++) compiled += check_launch(&l->launches[i], arch, op);
    return compiled;
}
