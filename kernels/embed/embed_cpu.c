/* embed_cpu: see embed.h. A unit is a row. */
#include "kernels/cpu.h"
#include "kernels/cpu_vec.h"
#include "kernels/embed/embed.h"

static void embed_row(void *arg, uint32_t t, uint32_t thread) {
    const struct embed_args *a = arg;
    uint32_t dim = a->table.cols, d = 0;
    const void *table = cpu_ptr(a->table.data);
    uint64_t first = (uint64_t)((const uint32_t *)cpu_ptr(a->ids))[t] * dim;
    float *x = (float *)cpu_ptr(a->x) + (uint64_t)t * dim;
    for (; d + LANES <= dim; d += LANES)
        vf_store(x + d, vf_load_dtype(table, first + d, a->table.dtype));
    if (d < dim)
        vf_store_part(x + d, vf_load_dtype_part(table, first + d, dim - d, a->table.dtype),
                      dim - d);
}

void CPU_NAME(embed)(void *ctx, const struct embed_args *a) {
    struct embed_args args = *a;
    cpu_for(ctx, (uint64_t)a->rows * a->table.cols, a->rows, embed_row, &args);
}
