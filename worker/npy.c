/* npy: see npy.h. */
#include "worker/npy.h"
#include "common/err.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 128 }; // a multiple of 64, as the format asks

struct npy {
    FILE *f;
    char *path;
    uint64_t rows, columns, written;
};

static int write_header(struct npy *n, struct err *e) {
    char h[HEADER_BYTES + 1];
    memset(h, ' ', sizeof h);
    memcpy(h, "\x93NUMPY\x01\x00", 8);
    h[8] = HEADER_BYTES - 10; // what follows, little-endian
    h[9] = 0;
    const char *order = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? "<" : ">";
    int len = snprintf(h + 10, HEADER_BYTES - 10,
                       "{'descr': '%sf4', 'fortran_order': False, 'shape': (%llu, %llu), }", order,
                       (unsigned long long)n->rows, (unsigned long long)n->columns);
    h[10 + len] = ' '; // over snprintf's NUL
    h[HEADER_BYTES - 1] = '\n';
    if (fwrite(h, 1, HEADER_BYTES, n->f) != HEADER_BYTES)
        return err_errno(e, "write '%s'", n->path);
    return ST_OK;
}

int npy_create(struct npy **ret, const char *path, uint64_t rows, uint64_t columns, struct err *e) {
    FILE *f = fopen(path, "wbe");
    if (!f) return err_errno(e, "create '%s'", path);
    struct npy *n = mem_calloc(1, sizeof *n);
    *n = (struct npy){f, mem_strdup(path), rows, columns, 0};
    int st = write_header(n, e);
    if (!st) return *ret = n, ST_OK;
    n->written = rows; // its failure has been told
    npy_close(n, NULL);
    return st;
}

int npy_add_row(struct npy *n, const float *row, struct err *e) {
    n->written++;
    if (fwrite(row, sizeof *row, n->columns, n->f) == n->columns) return ST_OK;
    return err_errno(e, "write '%s'", n->path);
}

int npy_close(struct npy *n, struct err *e) {
    int st = ST_OK;
    if (n->written != n->rows)
        st = err_set(e, ST_INTERNAL, "'%s': wanted %llu rows, found %llu", n->path,
                     (unsigned long long)n->rows, (unsigned long long)n->written);
    if (fclose(n->f) && !st) st = err_errno(e, "write '%s'", n->path);
    free(n->path);
    free(n);
    return st;
}
