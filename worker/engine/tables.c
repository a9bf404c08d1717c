/* tables: see tables.h. */
#include "worker/engine/tables.h"
#include "common/num.h"
#include "kernels/ops.h"

#include <string.h>

uint64_t tables_place(const struct table *t, uint32_t count, devptr base) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        *t[i].to = base + bytes;
        bytes += align_up_u64(t[i].bytes, TABLE_ALIGN);
    }
    return bytes;
}

void tables_write(const struct table *t, uint32_t count, devptr base, unsigned char *packed,
                  const struct ops *ops) {
    uint64_t bytes = tables_place(t, count, base);
    for (uint32_t i = 0; i < count; i++)
        if (t[i].bytes) memcpy(packed + (*t[i].to - base), t[i].from, t[i].bytes);
    ops->write(ops->ctx, base, packed, bytes);
}
