/* mem: heap calls that cannot fail. The process ends with a message when the host has no memory left:
 * on an overcommitting kernel that answer never comes for the small blocks these are for. Large or
 * peer-sized blocks (weights, bodies, frames) use malloc and return ST_NOMEM. Any thread. */
#pragma once
#include <stddef.h>

void *mem_alloc(size_t bytes);                // uninitialised; bytes 0 gives a valid pointer
void *mem_calloc(size_t count, size_t bytes); // zeroed; an overflowing product ends the process
void *mem_realloc(void *p, size_t bytes);     // p may be NULL
void *mem_realloc_array(void *p, size_t count, size_t bytes);
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t len); // len bytes of s and a NUL
