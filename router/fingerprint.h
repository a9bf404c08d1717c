/* fingerprint: a worker's fingerprint as clients see it. Pure, any thread. */
#pragma once

struct frame_fingerprint;

enum { FINGERPRINT_DIGEST_BYTES = 65 }; // SHA-256 as hex digits, with the NUL

// Of all parts: two workers with equal ones give equal bits.
void fingerprint_digest(const struct frame_fingerprint *f, char ret[FINGERPRINT_DIGEST_BYTES]);
// Eight hex digits of checkpoint, build, device, KV rule and rope settings; "" while the checkpoint is not known.
void fingerprint_hex(const struct frame_fingerprint *f, char ret[9]);
// "b" and the version, "-" and the eight digits: equal ones give equal tokens. ret_bytes: at least 32.
void fingerprint_system(const struct frame_fingerprint *f, char *ret, unsigned long ret_bytes);
