/* bigint: see bigint.h. */
#include "router/text/bigint.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>

static char mark[BIGINT_MARK_BYTES + 1];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_mark(void) {
    unsigned char raw[(BIGINT_MARK_BYTES - 2) / 2];
    ssize_t n = getrandom(raw, sizeof raw, 0);
    assert(n == (ssize_t)sizeof raw);
    for (size_t i = 0; i < sizeof raw; i++) {
        mark[1 + 2 * i] = "0123456789abcdef"[raw[i] >> 4];
        mark[2 + 2 * i] = "0123456789abcdef"[raw[i] & 15];
    }
    mark[BIGINT_MARK_BYTES - 1] = ':';
}

const char *bigint_mark(void) {
    pthread_once(&once, make_mark);
    return mark;
}

const char *bigint_digits(const json_t *v) {
    if (!json_is_string(v) || json_string_length(v) <= BIGINT_MARK_BYTES) return NULL;
    const char *s = json_string_value(v);
    return memcmp(s, bigint_mark(), BIGINT_MARK_BYTES) ? NULL : s + BIGINT_MARK_BYTES;
}
