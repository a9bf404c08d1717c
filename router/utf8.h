/* utf8: the length of a well-formed character (RFC 3629, section 4). Pure, any thread. */
#pragma once
#include <stddef.h>

// Bytes of the character at p (1..4), or 0 when none that is whole and well-formed stands within len bytes.
static inline size_t utf8_char_len(const unsigned char *p, size_t len) {
    if (len == 0) return 0;
    if (p[0] < 0x80) return 1;
    size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || len < n) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (p[0] == 0xe0 && p[1] < 0xa0) return 0; // overlong
    if (p[0] == 0xed && p[1] > 0x9f) return 0; // surrogates
    if (p[0] == 0xf0 && p[1] < 0x90) return 0; // overlong
    if (p[0] == 0xf4 && p[1] > 0x8f) return 0; // beyond U+10FFFF
    return n;
}
