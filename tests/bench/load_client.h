/* load_client: many streamed chat requests at once, over HTTP/1.1 or HTTP/2 by prior knowledge, for router_bench. It
 * counts events and measures how old they are: an event carries one token id, and the id is a clock. One thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum {
    LOAD_TICK_US = 50,
    LOAD_TICKS = 4000
}; // the id is the monotonic clock in ticks, modulo LOAD_TICKS

struct load; // defined in load_client.c

struct load_config {
    uint16_t port;
    bool http2;
    uint32_t streams, per_connection; // per_connection: 1 of HTTP/1.1, up to 100 of HTTP/2
    const char
        *head; // NULL: a chat request; else what is sent on connecting, and raw events come back
};

struct load *load_open(const struct load_config *c); // ends the process when it cannot
void load_close(struct load *l);
// Reads for so long. Returns how many events came.
uint64_t load_run(struct load *l, double seconds);
double load_age_us(const struct load *l,
                   double q);              // the quantile q of their ages, in the last load_run
uint64_t load_bytes(const struct load *l); // read, in the last load_run
uint32_t load_begun(const struct load *l); // streams of which an event has come
uint32_t load_tick_id(void);               // now, as an id
