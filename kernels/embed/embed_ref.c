/* embed_ref: the twin of embed.cu. */
#include "kernels/cuda/arith.h"
#include "kernels/cuda/refs.h"
#include "kernels/embed/embed.h"

void embed_ref(const struct embed_args *a) {
    const uint32_t *ids = refs_ptr(a->ids);
    float *x = refs_ptr(a->x);
    for (uint32_t t = 0; t < a->rows; t++)
        for (uint32_t d = 0; d < a->table.cols; d++)
            *x++ = refs_load(a->table.data, (uint64_t)ids[t] * a->table.cols + d, a->table.dtype);
}
