/* tables: small arrays of the host that operations read on the device, sent together: one behind the other, by one copy.
 * Where each lies follows from their sizes alone. */
#pragma once
#include <stdint.h>

#include "kernels/types.h"

struct ops;

enum { TABLE_ALIGN = 16 };

struct table {
    const void *from;
    uint64_t bytes;
    devptr *to; // where it lies, by tables_place
};

// At base and behind; the bytes of them all, with what lies between: at most TABLE_ALIGN for each more than their sum.
uint64_t tables_place(const struct table *t, uint32_t count, devptr base);
// The same, and sends them. packed: host memory for all their bytes.
void tables_write(const struct table *t, uint32_t count, devptr base, unsigned char *packed,
                  const struct ops *ops);
