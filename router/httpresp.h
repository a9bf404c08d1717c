/* httpresp: reads one HTTP/1.x reply, in pieces cut anywhere. Pure: no socket; one thread at a time.
 *
 * Interim replies (1xx) are skipped. A body is chunked, of an announced length, or ends with the connection (RFC 9112).
 * A bare LF is taken for a line end. Anything else that breaks the format is ST_CORRUPT with the line that did it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/strbuf.h"

enum { HTTPRESP_HEAD_BYTES_MAX = 64 << 10 }; // status line and headers; trailers again as much

enum httpresp_state {
    HTTPRESP_STATUS_LINE,
    HTTPRESP_HEADERS,
    HTTPRESP_BODY_LENGTH, // `left` bytes of it are to come
    HTTPRESP_BODY_CLOSE,  // until the connection ends
    HTTPRESP_CHUNK_SIZE,
    HTTPRESP_CHUNK_DATA, // `left` bytes of this chunk
    HTTPRESP_CHUNK_END,  // the line end behind them
    HTTPRESP_TRAILERS,
    HTTPRESP_DONE,
};

struct err;
struct httpresp {
    enum httpresp_state state;
    int status;                             // once the state is past HTTPRESP_HEADERS
    uint64_t left;                          // see the states
    bool chunked;                           // what the headers said
    bool has_length;                        //
    size_t head_bytes;                      // of the head or the trailers so far
    struct strbuf line;                     // the part of a line that has come
    void (*on_head)(void *arg, int status); // the final reply's status is known; may be NULL
    void (*on_body)(void *arg, const char *p, size_t len);
    void *arg;
};

// Set the callbacks of a zeroed struct, then feed. Bytes behind the end of the reply are an error.
int httpresp_feed(struct httpresp *r, const char *p, size_t len, struct err *e);
// The peer has closed: ST_CLOSED when the reply is not whole.
int httpresp_close(struct httpresp *r, struct err *e);
void httpresp_fini(struct httpresp *r);
