/* fingerprint: see fingerprint.h. */
#include "router/fingerprint.h"
#include "common/sha256.h"
#include "common/version.h"
#include "proto/frame.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

void fingerprint_digest(const struct frame_fingerprint *f, char ret[FINGERPRINT_DIGEST_BYTES]) {
    const char *parts[] = {f->checkpoint, f->build, f->device, f->kv, f->rope};
    struct sha256 *h = sha256_new();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i])
            sha256_add(h, parts[i], strlen(parts[i]) + 1); // the NUL keeps the parts apart
    uint8_t digest[SHA256_BYTES];
    static_assert((int)FINGERPRINT_DIGEST_BYTES == (int)SHA256_HEX_BYTES, "both are SHA-256");
    sha256_digest(h, digest);
    sha256_free(h);
    sha256_hex(digest, ret);
}

void fingerprint_hex(const struct frame_fingerprint *f, char ret[9]) {
    char hex[FINGERPRINT_DIGEST_BYTES];
    ret[0] = '\0';
    if (!f->checkpoint || !*f->checkpoint) return;
    fingerprint_digest(f, hex);
    memcpy(ret, hex, 8);
    ret[8] = '\0';
}

void fingerprint_system(const struct frame_fingerprint *f, char *ret, unsigned long ret_bytes) {
    char hex[9];
    fingerprint_hex(f, hex);
    snprintf(ret, ret_bytes, "b%s-%s", version_string(), *hex ? hex : "00000000");
}
