/* h2heads_fuzz: any bytes on an HTTP/2 connection, whole and in pieces: the same heads are refused, the same state is left. */
#include "router/h2heads.h"
#include "router/listen.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static const struct http_limits limits = {
    .head_bytes_max = 100, .fields_max = 10, .uri_bytes_max = 50, .body_bytes_max = 1000};

static void check(bool right) {
    if (!right) abort();
}

// Whether all of them were good.
static bool take(struct h2heads *h, const uint8_t *bytes, size_t len, size_t piece) {
    for (size_t at = 0; at < len; at += piece)
        if (h2heads_take(h, bytes + at, len - at < piece ? len - at : piece, &limits)) return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    size_t piece = len ? 1 + bytes[len - 1] % 7 : 1;
    struct h2heads whole = {0}, cut = {0};
    bool a = take(&whole, bytes, len, len ? len : 1), b = take(&cut, bytes, len, piece);
    // In pieces no more can have come behind what is refused.
    check(a == b);
    if (!a) return 0;
    check(whole.part == cut.part && whole.left == cut.left && whole.open == cut.open);
    check(whole.fields == cut.fields && whole.bytes == cut.bytes && whole.text == cut.text);
    return 0;
}
