/* sha256: see sha256.h. libcrypto's calls fail only without memory, which ends the process as in mem.c. */
#include "common/sha256.h"
#include "common/mem.h"

#include <openssl/evp.h>
#include <stdlib.h>

struct sha256 {
    EVP_MD_CTX *ctx;
};

static void must(int ok) {
    if (!ok) abort();
}

struct sha256 *sha256_new(void) {
    struct sha256 *h = mem_alloc(sizeof *h);
    h->ctx = EVP_MD_CTX_new();
    must(h->ctx != NULL);
    must(EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL));
    return h;
}

void sha256_free(struct sha256 *h) {
    if (!h) return;
    EVP_MD_CTX_free(h->ctx);
    free(h);
}

void sha256_add(struct sha256 *h, const void *p, size_t len) {
    must(EVP_DigestUpdate(h->ctx, p, len));
}

void sha256_add_le32(struct sha256 *h, const uint32_t *v, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint8_t b[4] = {(uint8_t)v[i], (uint8_t)(v[i] >> 8), (uint8_t)(v[i] >> 16),
                        (uint8_t)(v[i] >> 24)};
        sha256_add(h, b, sizeof b);
    }
}

void sha256_digest(const struct sha256 *h, uint8_t ret[SHA256_BYTES]) {
    EVP_MD_CTX *copy = EVP_MD_CTX_new();
    must(copy != NULL && EVP_MD_CTX_copy_ex(copy, h->ctx));
    must(EVP_DigestFinal_ex(copy, ret, NULL));
    EVP_MD_CTX_free(copy);
}

void sha256_hex(const uint8_t digest[SHA256_BYTES], char ret[SHA256_HEX_BYTES]) {
    static const char hex[] = "0123456789abcdef";
    for (int i = 0; i < SHA256_BYTES; i++) {
        ret[2 * i] = hex[digest[i] >> 4];
        ret[2 * i + 1] = hex[digest[i] & 15];
    }
    ret[2 * SHA256_BYTES] = '\0';
}
