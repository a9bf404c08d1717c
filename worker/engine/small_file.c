/* small_file: see small_file.h. */
#include "worker/engine/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/err.h"
#include "common/strbuf.h"

int small_file_read(struct strbuf *ret, const char *path, size_t max_bytes, struct err *e) {
    struct stat sb;
    int st = ST_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return err_errno(e, "file '%s'", path);
    if (fstat(fd, &sb)) {
        st = err_errno(e, "file '%s': fstat", path);
    } else if (!S_ISREG(sb.st_mode)) {
        st = err_set(e, ST_IO, "file '%s': wanted a regular file, found %s", path,
                     S_ISDIR(sb.st_mode) ? "a folder" : "something else");
    } else if ((uint64_t)sb.st_size > max_bytes) {
        st = err_set(e, ST_CORRUPT, "file '%s': wanted at most %zu bytes, found %lld", path,
                     max_bytes, (long long)sb.st_size);
    }
    if (st) goto out;
    strbuf_reserve(ret, (size_t)sb.st_size);
    for (ssize_t n; ret->len < (size_t)sb.st_size;) {
        n = read(fd, ret->p + ret->len, (size_t)sb.st_size - ret->len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            st = err_errno(e, "file '%s': read", path);
            goto out;
        }
        if (n == 0) break; // cut while we read: the parser will say so
        ret->len += (size_t)n;
    }
    ret->p[ret->len] = '\0';
out:
    close(fd);
    return st;
}
