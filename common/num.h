/* num: checked and rounding integer arithmetic. Pure, any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}
static inline uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}
static inline uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static inline uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
static inline size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}
static inline size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

// Both need b > 0 and stay right up to the largest a.
static inline uint32_t ceil_div_u32(uint32_t a, uint32_t b) {
    return a / b + (a % b != 0);
}
static inline uint64_t ceil_div_u64(uint64_t a, uint64_t b) {
    return a / b + (a % b != 0);
}

// a up to the next multiple of align, a power of two. Wraps for a within align of the top.
static inline uint64_t align_up_u64(uint64_t v, uint64_t align) {
    return ceil_div_u64(v, align) * align;
}

static inline size_t align_up_size(size_t a, size_t align) {
    return (a + align - 1) & ~(align - 1);
}

// False when the exact result does not fit; *ret is then untouched.
static inline bool mul_size(size_t *ret, size_t a, size_t b) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *ret = r;
    return true;
}
static inline bool add_size(size_t *ret, size_t a, size_t b) {
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *ret = r;
    return true;
}

// FNV-1a; never 0, which stands for none.
static inline uint64_t hash_u64(const char *s, size_t len) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h ? h : 1;
}

// The 64-bit finaliser of the draw's noise (Stafford's mix 13): a bijection that spreads every bit.
static inline uint64_t mix_u64(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    x ^= x >> 31;
    return x;
}
