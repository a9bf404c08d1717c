/* pretoken: see pretoken.h. */
#include "router/text/pretoken.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/strbuf.h"
#include "router/text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEPS_BASE = 10000000, // PCRE2's own default
    STEPS_PER_BYTE = 64,   // a run of n blanks costs a few n
    HEAP_KIB_MAX = 256 << 10,
    FOUND_BYTES = 12, // of the pattern, in a message
    JIT_STACK_MIN = 32 << 10,
    JIT_STACK_MAX = 8 << 20,
};

struct pretoken {
    pcre2_code *code;
    bool jit;
};
struct pretoken_work {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

// Letters, marks and numbers of Unicode 15 and 16 that Unicode 14 had not: PCRE2 10.42 is of version 14, the
// reference of 16, and nothing changed its class in between. All code points compared.
static const char young_letters[] =
    "\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}"
    "\\x{10d4a}-\\x{10d65}\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}"
    "\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}"
    "\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}\\x{1342f}"
    "\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d40}-\\x{16d6c}"
    "\\x{18cff}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e4d0}-\\x{1e4eb}"
    "\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}";
static const char young_marks[] =
    "\\x{897}\\x{cf3}\\x{ece}\\x{10d69}-\\x{10d6d}\\x{10efc}-\\x{10eff}\\x{11241}"
    "\\x{113b8}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113d0}\\x{113d2}"
    "\\x{113e1}-\\x{113e2}\\x{11f00}-\\x{11f01}\\x{11f03}\\x{11f34}-\\x{11f3a}"
    "\\x{11f3e}-\\x{11f42}\\x{11f5a}\\x{13440}\\x{13447}-\\x{13455}\\x{1611e}-\\x{1612f}\\x{1e08f}"
    "\\x{1e4ec}-\\x{1e4ef}\\x{1e5ee}-\\x{1e5ef}";
static const char young_numbers[] =
    "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}"
    "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}"
    "\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}";

struct reading { // of the file's pattern, into PCRE2's
    const char *pattern;
    size_t i;
    bool in_class;
    struct strbuf out;
};

static int refuse(const struct reading *r, struct err *e) {
    const char *found = r->pattern + r->i;
    size_t shown = strnlen(found, FOUND_BYTES);
    return err_set(e, ST_UNSUPPORTED,
                   "wanted a regex of literals, classes, groups and quantifiers known to mean the "
                   "same in PCRE2, found '%.*s' at offset %zu",
                   (int)utf8_valid(found, shown), found, r->i);
}

static void take(struct reading *r, size_t bytes) {
    strbuf_add(&r->out, r->pattern + r->i, bytes);
    r->i += bytes;
}

static int read_property(struct reading *r, struct err *e) {
    static const struct {
        const char *text, *more;
    } known[] = {{"\\p{L}", young_letters}, {"\\p{M}", young_marks}, {"\\p{N}", young_numbers}};
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
        if (strncmp(r->pattern + r->i, known[k].text, 5)) continue;
        if (!r->in_class) strbuf_add_char(&r->out, '[');
        take(r, 5);
        strbuf_add_str(&r->out, known[k].more);
        if (!r->in_class) strbuf_add_char(&r->out, ']');
        return ST_OK;
    }
    return refuse(r, e);
}

static int read_escape(struct reading *r, struct err *e) {
    char c = r->pattern[r->i + 1];
    if (c == 'p') return read_property(r, e);
    if (c == 's' || c == 'S') {
        // PCRE2's \s holds U+180E, which is white space no more.
        strbuf_add_str(&r->out, c == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
        r->i += 2;
        return ST_OK;
    }
    if (c && (strchr("rnt", c) || ispunct((unsigned char)c))) {
        take(r, 2);
        return ST_OK;
    }
    return refuse(r, e);
}

static int read_in_class(struct reading *r, struct err *e) {
    const char *p = r->pattern + r->i;
    if (p[0] == '[' || (p[0] == '&' && p[1] == '&')) return refuse(r, e);
    if (p[0] == ']') r->in_class = false;
    take(r, 1);
    return ST_OK;
}

// "{3}", "{1,}" and "{1,3}"; what follows must not read as another quantifier, which Oniguruma takes otherwise.
static int read_braces(struct reading *r, struct err *e) {
    const char *p = r->pattern + r->i;
    size_t n = 1 + strspn(p + 1, "0123456789");
    if (n == 1) return refuse(r, e);
    if (p[n] == ',') n += 1 + strspn(p + n + 1, "0123456789");
    if (p[n] != '}' || (p[n + 1] && strchr("+?*{", p[n + 1]))) return refuse(r, e);
    take(r, n + 1);
    return ST_OK;
}

static int read_group(struct reading *r, struct err *e) {
    static const char *const heads[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!"};
    const char *p = r->pattern + r->i;
    if (p[1] != '?' && p[1] != '*') return take(r, 1), ST_OK;
    for (size_t k = 0; k < sizeof heads / sizeof heads[0]; k++)
        if (!strncmp(p, heads[k], strlen(heads[k]))) return take(r, strlen(heads[k])), ST_OK;
    return refuse(r, e);
}

static int read_one(struct reading *r, struct err *e) {
    const char *p = r->pattern + r->i;
    if (p[0] == '\\') return read_escape(r, e);
    if (r->in_class) return read_in_class(r, e);
    if (p[0] == '[') {
        size_t head = p[1] == '^' ? 2 : 1;
        if (p[head] == ']') return refuse(r, e);
        r->in_class = true;
        return take(r, head), ST_OK;
    }
    if (p[0] == '(') return read_group(r, e);
    if (p[0] == '{') return read_braces(r, e);
    if (strchr("^$.}]", p[0])) return refuse(r, e);
    return take(r, 1), ST_OK;
}

static int compile(pcre2_code **ret, const struct strbuf *pattern, struct err *e) {
    int code;
    PCRE2_SIZE at;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)pattern->p, pattern->len, PCRE2_UTF | PCRE2_UCP,
                                  &code, &at, NULL);
    if (!c) {
        PCRE2_UCHAR text[120];
        pcre2_get_error_message(code, text, sizeof text);
        return err_set(e, ST_UNSUPPORTED, "wanted a regex that PCRE2 compiles, found: %s",
                       (char *)text);
    }
    uint32_t empty = 0;
    pcre2_pattern_info(c, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty) {
        pcre2_code_free(c);
        return err_set(e, ST_UNSUPPORTED,
                       "wanted a regex that matches at least one character, found one that can "
                       "match nothing");
    }
    *ret = c;
    return ST_OK;
}

int pretoken_new(struct pretoken **ret, const char *pattern, struct err *e) {
    struct reading r = {.pattern = pattern};
    pcre2_code *code = NULL;
    int st = ST_OK;
    while (!st && pattern[r.i]) st = read_one(&r, e);
    strbuf_add_str(&r.out, "");
    if (!st) st = compile(&code, &r.out, e);
    strbuf_fini(&r.out);
    if (st) return st;
    struct pretoken *p = mem_calloc(1, sizeof *p);
    p->code = code;
    // Where executable memory is forbidden the interpreter does the same, slower.
    p->jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
    *ret = p;
    return ST_OK;
}

void pretoken_free(struct pretoken *p) {
    if (!p) return;
    pcre2_code_free(p->code);
    free(p);
}

struct pretoken_work *pretoken_work_new(const struct pretoken *p) {
    struct pretoken_work *w = mem_calloc(1, sizeof *w);
    w->match = pcre2_match_data_create(1, NULL);
    w->context = pcre2_match_context_create(NULL);
    if (!w->match || !w->context) abort(); // some hundred bytes
    if (p->jit) w->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (w->stack) pcre2_jit_stack_assign(w->context, NULL, w->stack);
    pcre2_set_heap_limit(w->context, HEAP_KIB_MAX);
    return w;
}

void pretoken_work_free(struct pretoken_work *w) {
    if (!w) return;
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    pcre2_jit_stack_free(w->stack);
    free(w);
}

int pretoken_next(const struct pretoken *p, struct pretoken_work *w, const char *text, size_t len,
                  size_t first, size_t *ret_end, struct err *e) {
    uint64_t steps = STEPS_BASE + (uint64_t)STEPS_PER_BYTE * len;
    pcre2_set_match_limit(w->context, (uint32_t)min_u64(steps, UINT32_MAX));
    int n = pcre2_match(p->code, (PCRE2_SPTR)text, len, first, PCRE2_NO_UTF_CHECK, w->match,
                        w->context);
    if (n == PCRE2_ERROR_NOMATCH) {
        *ret_end = len;
        return ST_OK;
    }
    if (n < 0) {
        PCRE2_UCHAR why[120];
        pcre2_get_error_message(n, why, sizeof why);
        return err_set(e, ST_UNSUPPORTED, "the tokeniser's regex fails on this text: %s",
                       (char *)why);
    }
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(w->match);
    *ret_end = found[0] > first ? found[0] : found[1];
    return ST_OK;
}
