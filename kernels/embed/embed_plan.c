/* embed_plan: see embed_plan.h. One block a row. */
#include "kernels/embed/embed_plan.h"
#include "kernels/cuda/launch.h"

void embed_plan(const struct embed_args *a, const struct cuda_arch *arch, const struct cuda_work *w,
                struct launch_list *ret) {
    struct embed_params p = {.table = a->table.data,
                             .ids = a->ids,
                             .x = a->x,
                             .cols = a->table.cols,
                             .dtype = a->table.dtype};
    struct launch *l = launch_add(ret, "embed_gather", &p, sizeof p);
    l->grid[0] = a->rows;
    l->block[0] = EMBED_THREADS;
}
