/* sse: cuts a text/event-stream into events, from pieces cut anywhere. Pure; one thread at a time.
 *
 * By the event stream format of the WHATWG HTML standard (section 9.2.6): lines end in LF, CR or CRLF, data lines of
 * one event are joined by LF, comments are dropped, an event without data is none. Names, ids and retry times are
 * read over: every event that is of use here is known by its data. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "common/strbuf.h"

enum { SSE_EVENT_BYTES_MAX = 16 << 20 };

struct err;
struct sse {
    struct strbuf line, data;
    bool after_cr;   // an LF that comes now belongs to the line end before it
    bool has_data;   // of the event that is being read
    bool past_start; // a byte order mark is looked for in the first line alone
    // data: NUL behind it; its bytes stand until the call returns.
    void (*on_event)(void *arg, const char *data, size_t len);
    void *arg;
};

// Set the callback of a zeroed struct, then feed. ST_CORRUPT for an event over SSE_EVENT_BYTES_MAX.
int sse_feed(struct sse *s, const char *p, size_t len, struct err *e);
bool sse_inside(const struct sse *s); // whether an event has begun that is not whole
void sse_fini(struct sse *s);
