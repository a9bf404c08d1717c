/* small_file: a whole file in memory, bounded: a config, an index. Pure, any thread. */
#pragma once
#include <stddef.h>

struct err;
struct strbuf;

// ST_NOT_FOUND, ST_IO as open(2) says or for what is no regular file; ST_CORRUPT: longer than max_bytes.
int small_file_read(struct strbuf *ret, const char *path, size_t max_bytes, struct err *e);
