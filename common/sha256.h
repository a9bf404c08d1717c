/* sha256: SHA-256 through libcrypto. A running hash belongs to one thread at a time. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_HEX_BYTES = 65 }; // the hex form with its NUL

struct sha256; // defined in sha256.c
struct sha256 *sha256_new(void);
void sha256_free(struct sha256 *h); // NULL is fine
void sha256_add(struct sha256 *h, const void *p, size_t len);
void sha256_add_le32(struct sha256 *h, const uint32_t *v, size_t count); // as little-endian words
// The digest of all that was added so far; h can go on taking more.
void sha256_digest(const struct sha256 *h, uint8_t ret[SHA256_BYTES]);
void sha256_hex(const uint8_t digest[SHA256_BYTES], char ret[SHA256_HEX_BYTES]);
