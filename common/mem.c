/* mem: see mem.h. */
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *check(void *p, size_t bytes) {
    if (p) return p;
    fprintf(stderr, "railyard: no memory for %zu bytes\n", bytes);
    abort();
}

void *mem_alloc(size_t bytes) {
    return check(malloc(bytes ? bytes : 1), bytes);
}

void *mem_calloc(size_t count, size_t bytes) {
    return check(calloc(count ? count : 1, bytes ? bytes : 1), bytes);
}

void *mem_realloc(void *p, size_t bytes) {
    return check(realloc(p, bytes ? bytes : 1), bytes);
}

void *mem_realloc_array(void *p, size_t count, size_t bytes) {
    return check(reallocarray(p, count ? count : 1, bytes ? bytes : 1), bytes);
}

char *mem_strdup(const char *s) {
    return mem_strndup(s, strlen(s));
}

char *mem_strndup(const char *s, size_t len) {
    char *p = mem_alloc(len + 1);
    memcpy(p, s, len);
    p[len] = '\0';
    return p;
}
