/* npy: numpy's array file, version 1.0: a header that names type and shape, then the numbers.
 * Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#pragma once
#include <stdint.h>

struct err;
struct npy; // defined in npy.c

// A float32 array [rows, columns], C order, written row by row to a file beside path, which takes its place in npy_close. A path
// that is no file but a pipe or a device is written itself. ST_IO names the path.
int npy_create(struct npy **ret, const char *path, uint64_t rows, uint64_t columns, struct err *e);
int npy_add_row(struct npy *n, const float *row, struct err *e);
// ST_IO: the last bytes did not reach the file; ST_INTERNAL: other than `rows` were added. Frees n in any case; path is as it was
// unless ST_OK.
int npy_close(struct npy *n, struct err *e);
void npy_free(struct npy *n); // gives it up: path stays as it was; NULL is fine
