/* fake_http: an HTTP server with a script, for tests of clients. One thread; connections one after the other, the n-th
 * gets the n-th reply, byte for byte, and is closed. A reply NULL is never given: the connection is held until the
 * client closes it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct fake_http; // defined in fake_http.c
// The replies must stay until the stop.
struct fake_http *fake_http_start(const char *const *replies, size_t count);
struct fake_http *fake_http_start_unix(const char *path, const char *const *replies, size_t count);
uint16_t fake_http_port(const struct fake_http *f);
// Waits until every reply was given, then: the requests as they came, one behind the other. Stands until the free.
const char *fake_http_join(struct fake_http *f);
void fake_http_free(struct fake_http *f);
