/* frame_scan: the check before unpacking. It walks the msgpack heads of untrusted bytes without allocating, because
 * the unpacker reserves what a head claims: five bytes can ask for gigabytes. Internal to proto/. Pure, any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct err;

// ST_OK: exactly one msgpack object of len bytes that an unpacker can take, within FRAME_BYTES_MAX,
// FRAME_DEPTH_MAX and FRAME_OBJECTS_MAX. Otherwise ST_CORRUPT with what was wanted and found.
int frame_scan(const uint8_t *p, size_t len, struct err *e);
