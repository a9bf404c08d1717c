/* tokenizer_fuzz: any bytes given as a tokenizer.json are refused with a message or make a tokenizer that encodes.
 * Behind a NUL byte: the text to encode. */
#include "common/ids.h"
#include "tests/lib/tiny_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(bool right) {
    if (!right) abort();
}

static void use(const struct tokenizer *t, const char *text, size_t len) {
    struct ids ids = {0};
    struct strbuf back = {0};
    struct err e = {0};
    int st = tokenizer_encode(t, text, len, NULL, 0, &ids, &e);
    check(!st || (e.msg[0] && ids.len == 0));
    for (size_t i = 0; i < ids.len; i++) check(tokenizer_id_used(t, ids.v[i]));
    tokenizer_decode(t, ids.v, ids.len, false, &back);
    check(utf8_valid(strbuf_str(&back), back.len) == back.len);
    strbuf_fini(&back);
    ids_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static const char sample[] = "The 'll <|im_end|> x\xCC\x81\n\n  12";
    struct tokenizer *t = NULL;
    struct err e = {0};
    const uint8_t *end = len ? memchr(bytes, 0, len) : NULL;
    size_t file = end ? (size_t)(end - bytes) : len;
    if (tokenizer_parse(&t, "fuzz", (const char *)bytes, file, &e)) {
        check(!t && !strncmp(e.msg, "tokenizer file 'fuzz': ", 23) && !strchr(e.msg, '\n'));
        check(utf8_valid(e.msg, strlen(e.msg)) == strlen(e.msg));
        return 0;
    }
    use(t, sample, sizeof sample - 1);
    if (end) use(t, (const char *)end + 1, len - file - 1);
    tokenizer_free(t);
    return 0;
}
