/* h1scan: the framing of HTTP/1 as its bytes come in, ahead of h2o, which is too kind to be behind a proxy: it takes
 * two lengths, a length beside a coding, "0x5" as an empty chunk. What two readers could take for two different
 * messages is refused here, before h2o has it, on every request of a connection.
 *
 * Pure. One h1scan for each connection; zeroed is the state of a new one. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct apierr;
struct http_limits;

enum h1scan_state {
    H1SCAN_HEAD,
    H1SCAN_BODY,       // left bytes of it
    H1SCAN_CHUNK_SIZE, // in the digits
    H1SCAN_CHUNK_SPACE,
    H1SCAN_CHUNK_EXT,
    H1SCAN_CHUNK_SIZE_LF,
    H1SCAN_CHUNK_DATA, // left bytes of it
    H1SCAN_CHUNK_CR,
    H1SCAN_CHUNK_LF,
    H1SCAN_TRAILER,
    H1SCAN_TRAILER_LF,
    H1SCAN_HTTP2, // no concern of ours any more
    H1SCAN_BAD,   // refused: nothing behind it counts
};

struct h1scan {
    enum h1scan_state state;
    uint64_t left; // bytes of a body or chunk
    size_t seen;   // bytes of this head, of the chunk line's or of the trailers
    size_t line;   // bytes of the line, without CR
    bool digits;   // the chunk has a size
    bool was_cr;   // the byte before was CR
    bool begun;    // a head has ended: HTTP/2 cannot begin any more
    bool
        head_refused; // H1SCAN_BAD: by its head, of which seen bytes are at the input's end; else within a body
    bool body_refused; // head_refused: by nothing but the length that it announces; it is whole
    size_t length_at, length_len; // body_refused: that length's digits, in the head
};

// Looks at the last `fresh` of the `len` bytes of input; what came before them and is not read yet stands there as well.
// ST_INVAL: refused; *ret_good of the fresh bytes may be handed on, and no message ends within them. An announced length is
// refused where it is over HTTP_BODY_SLACK_BYTES beyond the limit: behind that h2o would answer, in plain text.
int h1scan_take(struct h1scan *s, const char *input, size_t len, size_t fresh,
                const struct http_limits *limits, size_t *ret_good, struct apierr *e);

struct h1scan_framing {
    bool chunked;
    uint64_t length;              // 0: none
    size_t length_at, length_len; // its digits, in the head, where they stand once
};
// The head of a request as it came, request line first: exactly one Host (1.1), one Content-Length at most, of digits,
// not both framings, no other coding than chunked.
int h1scan_head(const char *head, size_t len, bool is_http_1_1, struct h1scan_framing *ret,
                struct apierr *e);
