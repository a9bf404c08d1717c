/* fingerprint: a worker's fingerprint as clients see it. Pure, any thread. */
#pragma once

struct frame_fingerprint;

// Eight hex digits of checkpoint, build, device, KV rule and rope settings; "" while the checkpoint is not known.
void fingerprint_hex(const struct frame_fingerprint *f, char ret[9]);
// "b" and the version, "-" and the eight digits: equal ones give equal tokens. ret_bytes: at least 32.
void fingerprint_system(const struct frame_fingerprint *f, char *ret, unsigned long ret_bytes);
