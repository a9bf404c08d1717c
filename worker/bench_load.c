/* bench_load: loading beside a plain read of the same files. See bench_parts.h. */
#include "common/err.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "kernels/cpu_pool.h"
#include "worker/bench_parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 20, PATH_BYTES = 4096 };

// Every file of weights in the folder.
static int each_file(const char *dir, int (*fn)(void *arg, int fd, struct err *e), void *arg,
                     struct err *e) {
    DIR *d = opendir(dir);
    int st = ST_OK;
    if (!d) return err_errno(e, "open folder '%.200s'", dir);
    for (struct dirent *f; !st && (f = readdir(d));) {
        char path[PATH_BYTES];
        size_t len = strlen(f->d_name), end = strlen(".safetensors");
        if (len < end || strcmp(f->d_name + len - end, ".safetensors")) continue;
        snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            st = err_errno(e, "open '%.200s'", path);
        } else {
            st = fn(arg, fd, e);
            close(fd);
        }
    }
    closedir(d);
    return st;
}

static int put_out(void *arg, int fd, struct err *e) {
    if (fsync(fd)) return err_errno(e, "sync a file of weights");
    int error = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return error ? err_set(e, ST_IO, "put a file out of memory: %s", strerror(error)) : ST_OK;
}

struct reading {
    struct cpu_pool *pool;
    char *pieces; // one a thread
    int fd;
    uint64_t bytes, file_bytes;
    _Atomic int error;
};

static void read_piece(void *arg, uint32_t unit, uint32_t thread) {
    struct reading *r = arg;
    uint64_t at = (uint64_t)unit * PIECE, end = min_u64(at + PIECE, r->file_bytes);
    while (at < end) {
        ssize_t n = pread(r->fd, r->pieces + (size_t)thread * PIECE, end - at, (off_t)at);
        if (n <= 0) {
            atomic_store(&r->error, n ? errno : EIO);
            return;
        }
        at += (uint64_t)n;
    }
}

static int read_file(void *arg, int fd, struct err *e) {
    struct reading *r = arg;
    struct stat s;
    if (fstat(fd, &s)) return err_errno(e, "size of a file of weights");
    r->fd = fd;
    r->file_bytes = (uint64_t)s.st_size;
    r->bytes += r->file_bytes;
    cpu_pool_run(r->pool, (uint32_t)ceil_div_u64(r->file_bytes, PIECE), read_piece, r);
    int error = atomic_load(&r->error);
    return error ? err_set(e, ST_IO, "read a file of weights: %s", strerror(error)) : ST_OK;
}

// threads 0: one a CPU, as when the engine loads.
static int time_read(const char *dir, uint32_t threads, bool cold, double *ret_per_s,
                     struct err *e) {
    struct reading r = {0};
    int st = cpu_pool_new(&r.pool, threads, e);
    if (st) return st;
    size_t room = (size_t)cpu_pool_threads(r.pool) * PIECE;
    r.pieces = mem_alloc(room);
    memset(r.pieces, 0, room); // its own pages are not what is measured
    if (cold) st = each_file(dir, put_out, NULL, e);
    uint64_t before = mono_ns();
    if (!st) st = each_file(dir, read_file, &r, e);
    if (!st) *ret_per_s = (double)r.bytes / ((double)(mono_ns() - before + 1) / 1e9);
    free(r.pieces);
    cpu_pool_free(r.pool);
    return st;
}

struct loading {
    uint64_t first_ns, last_ns, bytes;
};

static void on_load(void *arg, uint64_t done, uint64_t total) {
    struct loading *l = arg;
    if (!done) l->first_ns = mono_ns();
    l->last_ns = mono_ns();
    l->bytes = total;
}

// The engine stays for the parts that follow.
static int time_load(struct bench *b, bool cold, struct loading *l, double *ret_s, struct err *e) {
    struct engine_config c = b->config;
    int st = cold ? each_file(c.model_dir, put_out, NULL, e) : ST_OK;
    c.on_load = on_load;
    c.on_load_arg = l;
    uint64_t before = mono_ns();
    if (!st) st = engine_new(&b->eng, &c, e);
    *ret_s = (double)(mono_ns() - before) / 1e9;
    return st;
}

// Plain reads with all threads around the loading, and one by a single thread before.
static int run(struct bench *b, bool cold, struct err *e) {
    struct loading l = {0};
    double before = 0, single = 0, after = 0, whole_s = 0;
    const char *dir = b->config.model_dir;
    uint32_t threads = b->config.threads;
    int st = time_read(dir, threads, cold, &before, e);
    if (!st && !cold) st = time_read(dir, 1, false, &single, e);
    if (!st) st = time_load(b, cold, &l, &whole_s, e);
    if (!st && !cold) st = time_read(dir, threads, false, &after, e);
    if (st) return st;
    double load = (double)l.bytes / ((double)(l.last_ns - l.first_ns + 1) / 1e9);
    double best = before;
    if (single > best) best = single;
    if (after > best) best = after;
    printf("\nload, %s: %.2f GB of weights at %.2f GB/s\n  plain reads of the files: %.2f GB/s "
           "with all "
           "threads",
           cold ? "files put out of memory" : "files as they are", (double)l.bytes / 1e9,
           load / 1e9, before / 1e9);
    if (!cold) printf(", %.2f after; %.2f with one", after / 1e9, single / 1e9);
    printf("\n  %.0f%% of the best of them; the whole start %.2f s\n", 100 * load / best, whole_s);
    bench_put(b,
              "{\"part\": \"%s\", \"bytes\": %llu, \"load_per_s\": %.0f, \"read_per_s\": %.0f, "
              "\"single_read_per_s\": %.0f, \"of_read\": %.4f, \"start_s\": %.3f}",
              cold ? "load-cold" : "load", (unsigned long long)l.bytes, load, best, single,
              load / best, whole_s);
    return ST_OK;
}

int bench_load(struct bench *b, struct err *e) {
    return run(b, false, e);
}

int bench_load_cold(struct bench *b, struct err *e) {
    return run(b, true, e);
}
