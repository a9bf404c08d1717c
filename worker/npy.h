/* npy: numpy's array file, version 1.0: a header that names type and shape, then the numbers.
 * Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#pragma once
#include <stdint.h>

struct err;
struct npy; // defined in npy.c

// A float32 array [rows, columns], C order, written to path row by row. ST_IO names the path.
int npy_create(struct npy **ret, const char *path, uint64_t rows, uint64_t columns, struct err *e);
int npy_add_row(struct npy *n, const float *row, struct err *e);
// ST_IO: the last bytes did not reach the file; ST_INTERNAL: other than `rows` were added. Frees n in any case.
int npy_close(struct npy *n, struct err *e);
