/* arena: memory that leaves in one call. Blocks are never freed singly; arena_reset keeps the chunks for the
 * next use, arena_fini gives everything back. Zero-initialised is empty and valid. Not for several threads. */
#pragma once
#include <stddef.h>

struct arena_chunk; // defined in arena.c
struct arena {
    struct arena_chunk *chunk; // the one being filled; older ones behind it
    size_t used_bytes;         // handed out since the last reset, padding included
};

void arena_fini(struct arena *a);
void arena_reset(struct arena *a);
void *arena_alloc(struct arena *a, size_t bytes); // 16-byte aligned, uninitialised
void *arena_calloc(struct arena *a, size_t count, size_t bytes);
void *arena_copy(struct arena *a, const void *p, size_t bytes);
char *arena_strndup(struct arena *a, const char *s, size_t len);
char *arena_strdup(struct arena *a, const char *s);
