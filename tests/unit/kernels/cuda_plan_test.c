/* Every plan, for every architecture: names a kernel that was compiled, with the argument it takes, and fits. What is wrong
 * here fails at a launch on a GPU that CI does not have. */
#include "kernels/cuda/fatbin.h"
#include "kernels/embed/embed_plan.h"
#include "tests/lib/plan_check.h"
#include "tests/lib/test.h"

#include <string.h>

static const uint32_t rows[] = {1, 2, 3, 8, 16, 17, 64, 128, 256, 2048, 8192};
enum { ROWS = sizeof rows / sizeof *rows };

static const struct cuda_work no_work;

static void note(const char *op, uint32_t compiled) {
    test_note("%s: %u launches held against compiled kernels", op, compiled);
}

TEST(embed_plans_fit_every_architecture) {
    static const uint32_t cols[] = {64, 1000, 2048, 5120, 6144};
    uint32_t compiled = 0;
    for (const struct cuda_arch *arch = cuda_archs; arch->sm; arch++)
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t c = 0; c < 5; c++)
                for (enum dtype d = DTYPE_F32; d <= DTYPE_F16; d++) {
                    struct launch_list *l = plan_check_begin();
                    struct embed_args a = {.table = {.dtype = d, .rows = 100, .cols = cols[c]},
                                           .rows = rows[r]};
                    embed_plan(&a, arch, &no_work, l);
                    compiled += plan_check(l, arch, "embed");
                }
    note("embed", compiled);
}

// The table is searched by halves.
TEST(the_table_of_kernels_is_in_order_and_every_kernel_is_found) {
    for (uint32_t i = 0; i < cuda_kernels_count; i++) {
        CHECK(i == 0 || strcmp(cuda_kernels[i - 1].name, cuda_kernels[i].name) < 0);
        CHECK(cuda_kernel_find(cuda_kernels[i].name) == &cuda_kernels[i]);
        CHECK(cuda_kernels[i].image < cuda_images_count);
    }
    CHECK(!cuda_kernel_find("no_such_kernel"));
    test_note("%u kernels in %u files", cuda_kernels_count, cuda_images_count);
}
