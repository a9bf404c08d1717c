/* encode_fuzz: any bytes given as text. The first byte counts plain spans, two bytes each (gap, length); then text.
 *
 * Bad UTF-8 is refused. All plain, the ids decode to the normalised text; cut by spans, no added token touches one. */
#include "common/ids.h"
#include "router/text/nfc.h"
#include "tests/lib/tiny_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

enum { SPANS_MAX = 8 };

static void check(bool right) {
    if (!right) abort();
}

static size_t read_spans(const uint8_t *b, size_t count, size_t text_len, struct text_span *ret) {
    size_t at = 0, n = 0;
    for (size_t i = 0; i < count; i++) {
        size_t first = at + b[2 * i], span = b[2 * i + 1];
        if (first > text_len) break;
        if (span > text_len - first) span = text_len - first;
        ret[n++] = (struct text_span){first, span};
        at = first + span;
    }
    return n;
}

static void check_all_plain(const struct tokenizer *t, const char *text, size_t len) {
    struct text_span all = {0, len};
    struct ids ids = {0};
    struct strbuf nfc = {0}, back = {0};
    struct err e;
    check(!tokenizer_encode(t, text, len, &all, 1, &ids, &e));
    nfc_add(&nfc, text, len);
    tokenizer_decode(t, ids.v, ids.len, false, &back);
    check(nfc.len == back.len && !memcmp(strbuf_str(&nfc), strbuf_str(&back), nfc.len));
    check(!nfc_is_plain(text, len) || (nfc.len == len && (!len || !memcmp(nfc.p, text, len))));
    for (size_t i = 0; i < ids.len; i++) check(!tokenizer_is_added(t, ids.v[i]));
    strbuf_fini(&nfc);
    strbuf_fini(&back);
    ids_fini(&ids);
}

// The ids stand for the text's bytes in their order, where nothing is normalised: none of an added token's is in a span.
static void check_spans(const struct tokenizer *t, const char *text, size_t len,
                        const struct text_span *spans, size_t count, const struct ids *ids) {
    size_t at = 0, k = 0;
    if (!nfc_is_plain(text, len)) return;
    for (size_t i = 0; i < ids->len; i++) {
        size_t id_len;
        const char *p = tokenizer_bytes(t, ids->v[i], &id_len);
        check(p && id_len <= len - at && !memcmp(p, text + at, id_len));
        while (k < count && (!spans[k].len || spans[k].first + spans[k].len <= at)) k++;
        check(!tokenizer_is_added(t, ids->v[i]) || k == count || at + id_len <= spans[k].first);
        at += id_len;
    }
    check(at == len);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static struct tokenizer *t;
    if (!t) t = tiny_tokenizer();
    size_t count = len ? bytes[0] % (SPANS_MAX + 1) : 0;
    if (len < 1 + 2 * count) return 0;
    const char *text = (const char *)bytes + 1 + 2 * count;
    struct text_span spans[SPANS_MAX];
    struct ids ids = {0};
    struct err e;
    len -= 1 + 2 * count;
    count = read_spans(bytes + 1, count, len, spans);
    int st = tokenizer_encode(t, text, len, spans, count, &ids, &e);
    check((st == ST_OK) == (utf8_valid(text, len) == len));
    if (!st) {
        check_spans(t, text, len, spans, count, &ids);
        check_all_plain(t, text, len);
    }
    ids_fini(&ids);
    return 0;
}
