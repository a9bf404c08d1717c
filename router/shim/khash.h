/* khash: as much of klib's hash table as h2o's installed internal header names; Debian's package leaves the file out. Only
 * h2early.c sees it, and calls nothing of it: in h2o's structs a table is a pointer. */
#pragma once
#include <stdint.h>

typedef uint32_t khint_t;
typedef khint_t khiter_t;
#define khash_t(name) kh_##name##_t
#define KHASH_MAP_INIT_INT64(name, type)                                                           \
    typedef struct {                                                                               \
        type *vals;                                                                                \
    } kh_##name##_t;
#define kh_get(name, h, key) ((void)(h), (khiter_t)0)
#define kh_end(h) ((khiter_t)0)
#define kh_val(h, at) ((h)->vals[at])
