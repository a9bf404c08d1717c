/* h1scan_fuzz: any bytes on an HTTP/1 connection, whole and in pieces: the same bytes are good, the same state is left,
 * and a refusal has its code and words. */
#include "router/apierr.h"
#include "router/h1scan.h"
#include "router/listen.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static const struct http_limits limits = {300, 100, 100, 1000};

static void check(bool right) {
    if (!right) abort();
}

static size_t take(struct h1scan *s, const char *bytes, size_t len, size_t piece) {
    size_t done = 0, sum = 0;
    while (done < len) {
        struct apierr e = {0};
        size_t n = len - done < piece ? len - done : piece, good = 0;
        int st = h1scan_take(s, bytes, done + n, n, &limits, &good, &e);
        check(good <= n && (st || good == n));
        sum += good;
        done += n;
        if (!st) continue;
        check(s->state == H1SCAN_BAD && *e.message);
        int status = apierr_status(e.code);
        check(status == 400 || status == 413 || status == 431);
        check(!s->head_refused ||
              (s->seen >= 1 && s->seen <= sum + 1)); // what conn.c puts its own in place of
        // Digits that conn.c writes noughts over.
        check(!s->body_refused ||
              (s->head_refused && s->length_len >= 1 && s->length_at + s->length_len < s->seen));
        break;
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    size_t piece = len ? 1 + bytes[len - 1] % 7 : 1;
    struct h1scan whole = {0}, cut = {0};
    size_t a = take(&whole, (const char *)bytes, len, len ? len : 1);
    size_t b = take(&cut, (const char *)bytes, len, piece);
    check(a == b && whole.state == cut.state);
    check(whole.state == H1SCAN_HTTP2 || whole.state == H1SCAN_BAD ||
          (whole.left == cut.left && whole.seen == cut.seen && whole.line == cut.line));
    return 0;
}
