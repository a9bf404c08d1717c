/* reply_fuzz: options, stop strings, ids and cuts from any bytes: the text does not depend on the cuts.
 *
 * Bytes: flags, min_tokens, stop count, per stop (length, bytes), then ids of two bytes; the high bit of the second cuts. */
#include "router/text/reply.h"
#include "tests/lib/tiny_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

enum { STOPS_MAX = 4, IDS_MAX = 512 };

static void check(bool right) {
    if (!right) abort();
}

struct input {
    const uint8_t *p, *end;
    struct reply_options o;
    const char *stops[STOPS_MAX];
    size_t stop_lens[STOPS_MAX];
    uint32_t ids[IDS_MAX];
    bool cut[IDS_MAX]; // behind the id
    size_t count;
};

static unsigned next(struct input *in) {
    return in->p < in->end ? *in->p++ : 0;
}

static void read_stops(struct input *in) {
    for (size_t n = next(in) % (STOPS_MAX + 1); n > 0; n--) {
        size_t len = next(in) % 16 + 1;
        if (len > (size_t)(in->end - in->p)) return;
        const char *text = (const char *)in->p;
        in->p += len;
        if (utf8_valid(text, len) < len) continue;
        in->stops[in->o.stop_count] = text;
        in->stop_lens[in->o.stop_count++] = len;
    }
}

static void read_input(struct input *in, const struct tokenizer *t) {
    unsigned flags = next(in);
    in->o = (struct reply_options){.tokenizer = t,
                                   .in_thought = flags & 1,
                                   .split_thought = flags & 2,
                                   .skip_special = flags & 4,
                                   .include_stop = flags & 8,
                                   .min_tokens = next(in),
                                   .stops = in->stops,
                                   .stop_lens = in->stop_lens};
    read_stops(in);
    while (in->end - in->p >= 2 && in->count < IDS_MAX) {
        unsigned low = next(in), high = next(in);
        in->cut[in->count] = high & 0x80;
        in->ids[in->count++] = low | (high & 1) << 8;
    }
}

// Pushes all ids, cut where the input says or not at all.
static size_t run(const struct input *in, bool cuts, struct reply_delta *all, char hash[65]) {
    struct reply *r = reply_new(&in->o);
    size_t taken = 0;
    for (size_t first = 0, i = 0; i < in->count; i++) {
        if (!(cuts && in->cut[i]) && i + 1 < in->count) continue;
        struct reply_delta d = {0};
        taken += reply_push(r, in->ids + first, i + 1 - first, &d);
        check(utf8_valid(strbuf_str(&d.content), d.content.len) == d.content.len);
        check(utf8_valid(strbuf_str(&d.reasoning), d.reasoning.len) == d.reasoning.len);
        strbuf_add(&all->content, strbuf_str(&d.content), d.content.len);
        strbuf_add(&all->reasoning, strbuf_str(&d.reasoning), d.reasoning.len);
        reply_delta_fini(&d);
        first = i + 1;
    }
    reply_finish(r, all);
    check(reply_tokens(r) == taken && reply_reasoning_tokens(r) <= taken);
    check(reply_state(r) == REPLY_STOP_STRING || taken == in->count);
    reply_token_sha256(r, hash);
    reply_free(r);
    return taken;
}

static bool same(const struct strbuf *a, const struct strbuf *b) {
    return a->len == b->len && !memcmp(strbuf_str(a), strbuf_str(b), a->len);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static struct tokenizer *t;
    static struct input in;
    if (!t) t = tiny_tokenizer();
    in = (struct input){.p = bytes, .end = bytes + len};
    read_input(&in, t);
    struct reply_delta whole = {0}, cut = {0};
    char whole_hash[65], cut_hash[65];
    check(run(&in, false, &whole, whole_hash) == run(&in, true, &cut, cut_hash));
    check(!strcmp(whole_hash, cut_hash));
    check(same(&whole.content, &cut.content) && same(&whole.reasoning, &cut.reasoning));
    reply_delta_fini(&whole);
    reply_delta_fini(&cut);
    return 0;
}
