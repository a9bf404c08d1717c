/* toolcall: see toolcall.h. Bytes that may begin a tag wait in `tag` until it is one, or is none. */
#include "router/text/toolcall.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "router/text/argument.h"
#include "router/text/pyjson.h"

#include <stdlib.h>
#include <string.h>

enum state {
    OUTSIDE,
    PREAMBLE,       // behind <tool_call>
    NAME,           // behind <function=
    BETWEEN_VALUES, // behind the name, or a value
    KEY,            // behind <parameter=
    VALUE,
    BETWEEN_CALLS, // behind </function>
};

enum tag { TAG_NONE, FUNCTION, END_FUNCTION, PARAMETER, END_PARAMETER, TAG_COUNT };

struct toolcall {
    const json_t *tools;
    struct toolcall_sink sink;
    enum state state;
    uint32_t begun, complete;
    struct strbuf tag;
    struct strbuf name;  // of the tool
    struct strbuf key;   // of the parameter
    struct strbuf value; // of one that is typed when it is whole
    unsigned types;
    bool first_parameter, value_begun;
    size_t newlines; // 0 or 1, at the end of a value: the closing tag's
};

static bool streams(const struct toolcall *t) {
    return t->types == ARGUMENT_STRING;
}

/* ---- what goes out ---- */

static void put(struct toolcall *t, const char *text, size_t len) {
    if (len) t->sink.on_arguments(t->sink.arg, t->begun - 1, text, len);
}

static struct strbuf trimmed(const struct strbuf *b) {
    struct strbuf s = {.p = b->p, .len = b->len};
    while (s.len && strchr(" \t\r\n", *s.p)) s.p++, s.len--;
    while (s.len && strchr(" \t\r\n", s.p[s.len - 1])) s.len--;
    return s;
}

static bool begin_call(struct toolcall *t) {
    struct strbuf name = trimmed(&t->name);
    if (!name.len) return false;
    t->begun++;
    t->first_parameter = true;
    t->sink.on_name(t->sink.arg, t->begun - 1, name.p, name.len);
    return true;
}

static void end_call(struct toolcall *t) {
    put(t, t->first_parameter ? "{}" : "}", t->first_parameter ? 2 : 1);
    t->complete++;
}

static void put_key(struct toolcall *t) {
    struct strbuf key = trimmed(&t->key), out = {0};
    strbuf_add_str(&out, t->first_parameter ? "{\"" : ", \"");
    pyjson_add_escaped(&out, strbuf_str(&key), key.len);
    strbuf_add_str(&out, streams(t) ? "\": \"" : "\": ");
    put(t, out.p, out.len);
    strbuf_fini(&out);
    t->first_parameter = false;
}

static void begin_value(struct toolcall *t) {
    struct strbuf name = trimmed(&t->name), key = trimmed(&t->key);
    t->types = argument_types(t->tools, name.p, name.len, strbuf_str(&key), key.len);
    t->state = VALUE;
    t->value_begun = false;
    t->newlines = 0;
    strbuf_reset(&t->value);
    if (streams(t)) put_key(t);
}

static void put_value(struct toolcall *t, char c) {
    if (!streams(t)) {
        strbuf_add_char(&t->value, c);
        return;
    }
    if ((unsigned char)c >= 0x20 && c != '"' && c != '\\') {
        put(t, &c, 1);
        return;
    }
    struct strbuf out = {0};
    pyjson_add_escaped(&out, &c, 1);
    put(t, out.p, out.len);
    strbuf_fini(&out);
}

static void take_value(struct toolcall *t, char c) {
    bool first = !t->value_begun;
    t->value_begun = true;
    if (first && c == '\n') return;
    if (t->newlines) put_value(t, '\n');
    t->newlines = c == '\n';
    if (!t->newlines) put_value(t, c);
}

static void end_value(struct toolcall *t) {
    if (streams(t)) {
        put(t, "\"", 1);
    } else {
        struct strbuf out = {0};
        put_key(t);
        argument_add(&out, t->types, strbuf_str(&t->value), t->value.len);
        put(t, out.p, out.len);
        strbuf_fini(&out);
    }
    t->state = BETWEEN_VALUES;
}

/* ---- tags ---- */

static const char *const tag_words[TAG_COUNT][4] = {
    [FUNCTION] = {"<", "function", "="},
    [END_FUNCTION] = {"<", "/", "function", ">"},
    [PARAMETER] = {"<", "parameter", "="},
    [END_PARAMETER] = {"<", "/", "parameter", ">"},
};

enum fit { MISMATCH, PREFIX, WHOLE };

static enum fit fit_tag(enum tag tag, const char *p, size_t len) {
    for (int w = 0; w < 4 && tag_words[tag][w]; w++) {
        while (w > 0 && len && *p == ' ') p++, len--;
        for (const char *word = tag_words[tag][w]; *word; word++, p++, len--) {
            if (!len) return PREFIX;
            if (*p != *word) return MISMATCH;
        }
    }
    return WHOLE;
}

static bool counts_here(const struct toolcall *t, enum tag tag) {
    static const unsigned wanted[] = {
        [PREAMBLE] = 1 << FUNCTION,
        [BETWEEN_VALUES] = 1 << FUNCTION | 1 << END_FUNCTION | 1 << PARAMETER,
        [VALUE] = 1 << END_FUNCTION | 1 << PARAMETER | 1 << END_PARAMETER,
        [BETWEEN_CALLS] = 1 << FUNCTION,
    };
    return wanted[t->state] >> tag & 1;
}

static void on_tag(struct toolcall *t, enum tag tag) {
    if (t->state == VALUE) end_value(t);
    if (t->state == BETWEEN_VALUES && (tag == FUNCTION || tag == END_FUNCTION)) end_call(t);
    if (tag == FUNCTION)
        toolcall_open_function(t);
    else if (tag == END_FUNCTION)
        t->state = BETWEEN_CALLS;
    else if (tag == PARAMETER) {
        t->state = KEY;
        strbuf_reset(&t->key);
    }
}

static void drop_tag_byte(struct toolcall *t) {
    if (t->state == VALUE) take_value(t, *t->tag.p);
    strbuf_drop_front(&t->tag, 1);
}

// Until what waits is a proper prefix of a tag, or nothing.
static void settle_tag(struct toolcall *t) {
    while (t->tag.len) {
        enum fit best = MISMATCH;
        for (enum tag tag = FUNCTION; tag < TAG_COUNT; tag++) {
            enum fit f = counts_here(t, tag) ? fit_tag(tag, t->tag.p, t->tag.len) : MISMATCH;
            if (f == WHOLE) {
                strbuf_reset(&t->tag);
                on_tag(t, tag);
                return;
            }
            if (f == PREFIX) best = f;
        }
        if (best == PREFIX) return;
        drop_tag_byte(t);
    }
}

/* ---- text ---- */

static bool ends_with(const struct strbuf *b, const char *s) {
    size_t n = strlen(s);
    return b->len >= n && !memcmp(b->p + b->len - n, s, n);
}

static void take_name(struct toolcall *t, char c) {
    static const char end[] = "</function>";
    strbuf_add_char(&t->name, c);
    if (c != '>') return;
    bool ended = ends_with(&t->name, end);
    t->name.len -= ended ? sizeof end - 1 : 1;
    bool begun = begin_call(t);
    if (begun && ended) end_call(t);
    t->state = begun && !ended ? BETWEEN_VALUES : BETWEEN_CALLS;
}

static void take_key(struct toolcall *t, char c) {
    if (c == '>')
        begin_value(t);
    else
        strbuf_add_char(&t->key, c);
}

static void take(struct toolcall *t, char c) {
    if (t->state == NAME) {
        take_name(t, c);
    } else if (t->state == KEY) {
        take_key(t, c);
    } else if (t->tag.len || c == '<') {
        strbuf_add_char(&t->tag, c);
        settle_tag(t);
    } else if (t->state == VALUE) {
        take_value(t, c);
    }
}

void toolcall_text(struct toolcall *t, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) take(t, text[i]);
}

/* ---- marks and ends ---- */

// Whatever stands open ends as if its closing tags had come. A name that has not ended is no call.
static void close_all(struct toolcall *t) {
    strbuf_reset(&t->tag);
    if (t->state == VALUE) end_value(t);
    if (t->state == BETWEEN_VALUES || t->state == KEY) end_call(t);
}

void toolcall_open(struct toolcall *t) {
    close_all(t);
    t->state = PREAMBLE;
}

void toolcall_open_function(struct toolcall *t) {
    strbuf_reset(&t->name);
    t->state = NAME;
}

void toolcall_close(struct toolcall *t) {
    close_all(t);
    t->state = OUTSIDE;
}

void toolcall_finish(struct toolcall *t, bool cut) {
    if (!cut) close_all(t);
    t->state = OUTSIDE;
}

struct toolcall *toolcall_new(const json_t *tools, const struct toolcall_sink *sink) {
    struct toolcall *t = mem_calloc(1, sizeof *t);
    t->tools = tools;
    t->sink = *sink;
    return t;
}

void toolcall_free(struct toolcall *t) {
    if (!t) return;
    strbuf_fini(&t->tag);
    strbuf_fini(&t->name);
    strbuf_fini(&t->key);
    strbuf_fini(&t->value);
    free(t);
}

bool toolcall_inside(const struct toolcall *t) {
    return t->state != OUTSIDE;
}

bool toolcall_in_value(const struct toolcall *t) {
    return t->state == VALUE;
}

uint32_t toolcall_complete(const struct toolcall *t) {
    return t->complete;
}
