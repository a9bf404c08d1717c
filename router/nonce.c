/* nonce: see nonce.h. */
#include "router/nonce.h"

#include <assert.h>
#include <sys/random.h>

void nonce_hex(char *ret, size_t digits) {
    unsigned char raw[32];
    assert(digits % 2 == 0 && digits <= 2 * sizeof raw);
    ssize_t n = getrandom(raw, digits / 2, 0); // up to 256 bytes come whole
    assert(n == (ssize_t)(digits / 2));
    for (size_t i = 0; i < digits; i++)
        ret[i] = "0123456789abcdef"[i % 2 ? raw[i / 2] & 15 : raw[i / 2] >> 4];
    ret[digits] = '\0';
}

uint64_t nonce_u64(void) {
    uint64_t x;
    ssize_t n = getrandom(&x, sizeof x, 0);
    assert(n == sizeof x);
    return x;
}
