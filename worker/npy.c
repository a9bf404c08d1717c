/* npy: see npy.h. */
#include "worker/npy.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/strbuf.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES = 128 }; // a multiple of 64, as the format asks

struct npy {
    FILE *f;
    char *path;
    char *place,
        *partial; // what the name leads to, and the file beside it until all is there; NULL: a pipe, a device
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

// What is no file, as /dev/stdout or a pipe, cannot be put in the place of another one, and is written as it stands.
static int open_partial(struct npy *n, struct err *e) {
    struct stat old;
    struct strbuf b = {0};
    bool is_there = !stat(n->path, &old);
    if (is_there && !S_ISREG(old.st_mode)) {
        n->f = fopen(n->path, "wbe");
        return n->f ? ST_OK : (int)err_errno(e, "create '%s'", n->path);
    }
    n->place = is_there ? realpath(n->path, NULL) : NULL; // a link stays one
    if (!n->place) n->place = mem_strdup(n->path);
    strbuf_printf(&b, "%s.%ld.partial", n->place, (long)getpid());
    int fd = open(b.p, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) n->f = fdopen(fd, "wb");
    int st = n->f ? ST_OK : (int)err_errno(e, "create '%s'", n->path);
    if (fd >= 0) n->partial = strbuf_take(&b);
    if (!st && is_there) (void)!fchmod(fd, old.st_mode & 0777);
    strbuf_fini(&b);
    return st;
}

int npy_create(struct npy **ret, const char *path, uint64_t rows, uint64_t columns, struct err *e) {
    struct npy *n = mem_calloc(1, sizeof *n);
    *n = (struct npy){.path = mem_strdup(path), .rows = rows, .columns = columns};
    int st = open_partial(n, e);
    if (!st) st = write_header(n, e);
    if (!st) return *ret = n, ST_OK;
    npy_free(n);
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
    n->f = NULL;
    if (!st && n->partial && rename(n->partial, n->place)) st = err_errno(e, "write '%s'", n->path);
    if (!st) {
        free(n->partial);
        n->partial = NULL; // it is the file itself now
    }
    npy_free(n);
    return st;
}

void npy_free(struct npy *n) {
    if (!n) return;
    if (n->f) fclose(n->f);
    if (n->partial) unlink(n->partial);
    free(n->partial);
    free(n->place);
    free(n->path);
    free(n);
}
