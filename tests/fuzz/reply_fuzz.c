/* reply_fuzz: options, stop strings, ids and cuts from any bytes: the text does not depend on the cuts.
 *
 * Bytes: flags, min_tokens, stop count, per stop (length, bytes), then ids of two bytes; the high bit of the second cuts.
 * With calls, arguments are JSON and what is told of the ids of the content fits it. */
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

// Parameters a to i: one of each type.
static const json_t *tools(void) {
    static json_t *made;
    if (made) return made;
    static const char *const types[] = {"string", "integer", "number",  "boolean", "object",
                                        "array",  "null",    "integer", "odd"};
    json_t *properties = json_object();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char name[2] = {(char)('a' + i), 0};
        json_object_set_new(properties, name, json_pack("{s:s}", "type", types[i]));
    }
    made = json_pack("[{s:{s:s,s:{s:o}}}]", "function", "name", "f", "parameters", "properties",
                     properties);
    return made;
}

static void read_input(struct input *in, const struct tokenizer *t) {
    unsigned flags = next(in);
    in->o = (struct reply_options){.tokenizer = t,
                                   .in_thought = flags & 1,
                                   .split_thought = flags & 2,
                                   .skip_special = flags & 4,
                                   .include_stop = flags & 8,
                                   .parse_calls = flags & 16,
                                   .one_call = flags & 32,
                                   .content_ids = flags & 64,
                                   .tools = tools(),
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

struct joined { // pieces, borders between pushes forgotten
    struct strbuf text, content, reasoning;
    struct strbuf call; // arguments of the present one
    struct strbuf ids;  // those of the content
    size_t id_count, calls;
};

static void joined_fini(struct joined *j) {
    strbuf_fini(&j->text);
    strbuf_fini(&j->content);
    strbuf_fini(&j->reasoning);
    strbuf_fini(&j->call);
    strbuf_fini(&j->ids);
}

static void check_call(const struct joined *j, bool cut) {
    // jansson takes no NUL in a key.
    if (!j->calls || cut || strstr(strbuf_str(&j->call), "\\u0000")) return;
    json_t *v = json_loadb(strbuf_str(&j->call), j->call.len,
                           JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    check(json_is_object(v));
    json_decref(v);
}

static void join(struct joined *j, const struct reply_delta *d) {
    const struct strbuf *from[] = {&d->reasoning, &d->content, &d->calls, &d->calls};
    size_t at[4] = {0}, ids = 0;
    for (size_t i = 0; i < d->piece_count; i++) {
        const struct reply_piece *p = &d->pieces[i];
        size_t *o = &at[p->kind == REPLY_ARGUMENTS ? REPLY_CALL : p->kind];
        const char *s = strbuf_str(from[p->kind]) + *o;
        check(*o + p->len <= from[p->kind]->len && utf8_valid(s, p->len) == p->len);
        *o += p->len;
        if (p->kind == REPLY_CALL) {
            check_call(j, false); // all before the last are whole
            strbuf_reset(&j->call);
            check(p->call == j->calls++);
            strbuf_printf(&j->text, "\n#%u ", p->call);
        } else if (p->kind == REPLY_ARGUMENTS) {
            check(p->call + 1 == j->calls);
            strbuf_add(&j->call, s, p->len);
        }
        struct strbuf *to = p->kind == REPLY_REASONING ? &j->reasoning
                            : p->kind == REPLY_CONTENT ? &j->content
                                                       : &j->text;
        strbuf_add(to, s, p->len);
        ids += p->ids;
    }
    check(ids == d->id_count);
    for (size_t i = 0; i < d->id_count; i++)
        strbuf_printf(&j->ids, "%zu %zu,", d->ids[i].idx, d->ids[i].char_first);
    j->id_count += ids;
}

// Pushes all ids, cut where the input says or not at all.
static size_t run(const struct input *in, bool cuts, struct joined *j, char hash[65]) {
    struct reply *r = reply_new(&in->o);
    struct reply_delta d = {0};
    size_t taken = 0;
    bool limit = in->count & 1;
    for (size_t first = 0, i = 0; i < in->count; i++) {
        if (!(cuts && in->cut[i]) && i + 1 < in->count) continue;
        taken += reply_push(r, in->ids + first, i + 1 - first, &d);
        join(j, &d);
        reply_delta_reset(&d);
        first = i + 1;
    }
    reply_finish(r, limit, &d);
    join(j, &d);
    check_call(j, limit && reply_calls(r) < j->calls);
    check(reply_calls(r) <= j->calls && j->id_count <= taken);
    check(reply_tokens(r) == taken && reply_reasoning_tokens(r) <= taken);
    check(reply_state(r) != REPLY_OPEN || taken == in->count);
    reply_token_sha256(r, hash);
    reply_delta_fini(&d);
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
    struct joined whole = {0}, cut = {0};
    char whole_hash[65], cut_hash[65];
    check(run(&in, false, &whole, whole_hash) == run(&in, true, &cut, cut_hash));
    check(!strcmp(whole_hash, cut_hash) && same(&whole.text, &cut.text));
    check(same(&whole.content, &cut.content) && same(&whole.reasoning, &cut.reasoning));
    check(same(&whole.ids, &cut.ids));
    joined_fini(&whole);
    joined_fini(&cut);
    return 0;
}
