/* utf8: see utf8.h. */
#include "router/text/utf8.h"
#include "common/strbuf.h"

#include <stdbool.h>
#include <string.h>

// What may follow a lead byte: how many bytes, and the range of the first of them (the others are 80..BF).
struct lead {
    uint8_t more, low, high;
};

static struct lead lead_of(uint8_t b) {
    if (b >= 0xC2 && b <= 0xDF) return (struct lead){1, 0x80, 0xBF};
    if (b == 0xE0) return (struct lead){2, 0xA0, 0xBF};
    if (b == 0xED) return (struct lead){2, 0x80, 0x9F};
    if (b >= 0xE1 && b <= 0xEF) return (struct lead){2, 0x80, 0xBF};
    if (b == 0xF0) return (struct lead){3, 0x90, 0xBF};
    if (b >= 0xF1 && b <= 0xF3) return (struct lead){3, 0x80, 0xBF};
    if (b == 0xF4) return (struct lead){3, 0x80, 0x8F};
    return (struct lead){0, 0, 0};
}

int utf8_read(const char *text, size_t len, uint32_t *ret_cp) {
    const uint8_t *p = (const uint8_t *)text;
    if (len == 0) return 0;
    if (p[0] < 0x80) return *ret_cp = p[0], 1;
    struct lead l = lead_of(p[0]);
    if (l.more == 0) return -1;
    uint32_t cp = p[0] & (0x3Fu >> l.more);
    for (size_t i = 1; i <= l.more; i++) {
        if (i == len) return 0;
        uint8_t low = i == 1 ? l.low : 0x80, high = i == 1 ? l.high : 0xBF;
        if (p[i] < low || p[i] > high) return -(int)i;
        cp = cp << 6 | (p[i] & 0x3F);
    }
    *ret_cp = cp;
    return l.more + 1;
}

size_t utf8_valid(const char *text, size_t len) {
    size_t i = 0;
    while (i < len) {
        uint64_t word;
        if (len - i >= sizeof word && (memcpy(&word, text + i, sizeof word), true) &&
            !(word & 0x8080808080808080u)) {
            i += sizeof word;
            continue;
        }
        uint32_t cp;
        int n = utf8_read(text + i, len - i, &cp);
        if (n <= 0) return i;
        i += (size_t)n;
    }
    return len;
}

size_t utf8_write(char ret[4], uint32_t cp) {
    if (cp < 0x80) {
        ret[0] = (char)cp;
        return 1;
    }
    size_t more = cp < 0x800 ? 1 : cp < 0x10000 ? 2 : 3;
    for (size_t i = more; i > 0; i--, cp >>= 6) ret[i] = (char)(0x80 | (cp & 0x3F));
    ret[0] = (char)(0xFF00u >> (more + 1) | cp);
    return more + 1;
}

void utf8_add(struct strbuf *out, uint32_t cp) {
    char b[4];
    strbuf_add(out, b, utf8_write(b, cp));
}

void utf8_add_lossy(struct strbuf *out, const char *text, size_t len) {
    while (len) {
        size_t good = utf8_valid(text, len);
        strbuf_add(out, text, good);
        text += good;
        len -= good;
        if (len == 0) return;
        uint32_t cp;
        int n = utf8_read(text, len, &cp);
        size_t bad = n < 0 ? (size_t)-n : len; // 0: a character cut off by the end
        utf8_add(out, 0xFFFD);
        text += bad;
        len -= bad;
    }
}
