/* argument: see argument.h. */
#include "router/text/argument.h"
#include "common/strbuf.h"
#include "router/text/pyjson.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    SCHEMA_DEPTH_MAX = 16,     // members of members; a $ref may point back at itself
    SCHEMA_MEMBERS_MAX = 4096, // looked at for one parameter: $refs can multiply
    JSON_DEPTH_MAX = 64,       // of a value, as in a request's body
};

/* ---- the types a schema allows ---- */

static const struct {
    const char *name;
    unsigned type;
} type_names[] = {
    {"null", ARGUMENT_NULL},      {"integer", ARGUMENT_INTEGER},  {"int", ARGUMENT_INTEGER},
    {"int32", ARGUMENT_INTEGER},  {"int64", ARGUMENT_INTEGER},    {"uint", ARGUMENT_INTEGER},
    {"uint32", ARGUMENT_INTEGER}, {"uint64", ARGUMENT_INTEGER},   {"long", ARGUMENT_INTEGER},
    {"short", ARGUMENT_INTEGER},  {"unsigned", ARGUMENT_INTEGER}, {"number", ARGUMENT_NUMBER},
    {"float", ARGUMENT_NUMBER},   {"float32", ARGUMENT_NUMBER},   {"float64", ARGUMENT_NUMBER},
    {"double", ARGUMENT_NUMBER},  {"boolean", ARGUMENT_BOOLEAN},  {"bool", ARGUMENT_BOOLEAN},
    {"object", ARGUMENT_OBJECT},  {"dict", ARGUMENT_OBJECT},      {"array", ARGUMENT_ARRAY},
    {"arr", ARGUMENT_ARRAY},      {"list", ARGUMENT_ARRAY},       {"sequence", ARGUMENT_ARRAY},
    {"string", ARGUMENT_STRING},  {"str", ARGUMENT_STRING},       {"text", ARGUMENT_STRING},
    {"varchar", ARGUMENT_STRING}, {"char", ARGUMENT_STRING},      {"enum", ARGUMENT_STRING},
};

static unsigned type_named(const json_t *v) {
    const char *s = json_string_value(v);
    for (size_t i = 0; s && i < sizeof type_names / sizeof *type_names; i++)
        if (!strcasecmp(type_names[i].name, s)) return type_names[i].type;
    return 0;
}

static unsigned type_of_value(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: return ARGUMENT_OBJECT;
    case JSON_ARRAY: return ARGUMENT_ARRAY;
    case JSON_STRING: return ARGUMENT_STRING;
    case JSON_INTEGER: return ARGUMENT_INTEGER;
    case JSON_REAL: return ARGUMENT_NUMBER;
    case JSON_NULL: return ARGUMENT_NULL;
    default: return ARGUMENT_BOOLEAN;
    }
}

// "#/$defs/x": names from the root down. NULL: not of this schema.
static const json_t *follow(const json_t *root, const char *ref) {
    if (*ref++ != '#') return NULL;
    const json_t *at = root;
    while (at && *ref == '/') {
        size_t n = strcspn(++ref, "/");
        at = json_object_getn(at, ref, n);
        ref += n;
    }
    return at;
}

struct search {
    const json_t *root;
    unsigned members;
};

static unsigned types_of(struct search *s, const json_t *schema, unsigned depth) {
    static const char *const groups[] = {"anyOf", "oneOf", "allOf"};
    if (depth > SCHEMA_DEPTH_MAX || s->members++ > SCHEMA_MEMBERS_MAX) return 0;
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    const json_t *one = json_object_get(schema, "const");
    unsigned found = type_named(type);
    for (size_t i = 0; i < json_array_size(type); i++) found |= type_named(json_array_get(type, i));
    for (size_t i = 0; i < json_array_size(values); i++)
        found |= type_of_value(json_array_get(values, i));
    if (one) found |= type_of_value(one);
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        const json_t *members = json_object_get(schema, groups[g]);
        for (size_t i = 0; i < json_array_size(members); i++)
            found |= types_of(s, json_array_get(members, i), depth + 1);
    }
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (ref) found |= types_of(s, follow(s->root, ref), depth + 1);
    return found;
}

static const json_t *tool_named(const json_t *tools, const char *name, size_t len) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const json_t *v = json_object_get(function, "name");
        if (json_string_length(v) == len && !memcmp(json_string_value(v), name, len))
            return function;
    }
    return NULL;
}

unsigned argument_types(const json_t *tools, const char *tool, size_t tool_len, const char *name,
                        size_t name_len) {
    const json_t *schema = json_object_get(tool_named(tools, tool, tool_len), "parameters");
    const json_t *member = json_object_getn(json_object_get(schema, "properties"), name, name_len);
    struct search s = {.root = schema};
    unsigned found = member ? types_of(&s, member, 0) : 0;
    return found ? found : ARGUMENT_STRING;
}

/* ---- a text as a value ---- */

struct span {
    const char *p;
    size_t len;
};

static struct span trim(struct span s) {
    while (s.len && isspace((unsigned char)*s.p)) s.p++, s.len--;
    while (s.len && isspace((unsigned char)s.p[s.len - 1])) s.len--;
    return s;
}

static bool is_word(struct span s, const char *word) {
    return s.len == strlen(word) && !strncasecmp(s.p, word, s.len);
}

static size_t digits_at(struct span s, size_t i) {
    size_t n = 0;
    while (i + n < s.len && isdigit((unsigned char)s.p[i + n])) n++;
    return n;
}

// Of any size; a plus sign and leading zeros are no JSON and go.
static bool add_integer(struct strbuf *out, struct span s) {
    s = trim(s);
    bool negative = s.len && *s.p == '-';
    size_t i = negative || (s.len && *s.p == '+');
    size_t n = digits_at(s, i);
    if (n == 0 || i + n != s.len) return false;
    while (n > 1 && s.p[i] == '0') i++, n--;
    if (negative && s.p[i] != '0') strbuf_add_char(out, '-');
    strbuf_add(out, s.p + i, n);
    return true;
}

// [sign] digits [. digits] [e [sign] digits]; a digit on one side of the point is enough.
static bool is_decimal(struct span s) {
    size_t i = s.len && (*s.p == '-' || *s.p == '+');
    size_t whole = digits_at(s, i), fraction = 0;
    i += whole;
    if (i < s.len && s.p[i] == '.') {
        fraction = digits_at(s, i + 1);
        i += 1 + fraction;
    }
    if (whole + fraction == 0) return false;
    if (i < s.len && (s.p[i] == 'e' || s.p[i] == 'E')) {
        i++;
        if (i < s.len && (s.p[i] == '-' || s.p[i] == '+')) i++;
        size_t n = digits_at(s, i);
        if (n == 0) return false;
        i += n;
    }
    return i == s.len;
}

static bool add_number(struct strbuf *out, struct span s) {
    if (add_integer(out, s)) return true;
    s = trim(s);
    if (!is_decimal(s)) return false;
    struct strbuf text = {0};
    strbuf_add(&text, s.p, s.len);
    double x = strtod(strbuf_str(&text), NULL);
    strbuf_fini(&text);
    if (!isfinite(x)) return false;
    if (x == floor(x))
        strbuf_printf(out, "%.0f", x == 0 ? 0.0 : x); // no minus zero among integers
    else
        pyjson_add_real(out, x);
    return true;
}

static bool add_boolean(struct strbuf *out, struct span s) {
    s = trim(s);
    bool yes = is_word(s, "true") || is_word(s, "1");
    if (!yes && !is_word(s, "false") && !is_word(s, "0")) return false;
    strbuf_add_str(out, yes ? "true" : "false");
    return true;
}

// JSON text that jansson has taken, with our separators; strings and numbers as they stand.
static void add_spaced(struct strbuf *out, struct span s) {
    bool quoted = false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.p[i];
        if (!quoted && (c == ' ' || c == '\t' || c == '\n' || c == '\r')) continue;
        strbuf_add_char(out, c);
        if (quoted && c == '\\')
            strbuf_add_char(out, s.p[++i]);
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == ',' || c == ':'))
            strbuf_add_char(out, ' ');
    }
}

static bool too_deep(struct span s) {
    size_t depth = 0, deepest = 0;
    bool quoted = false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.p[i];
        if (c == '"')
            quoted = !quoted;
        else if (quoted)
            i += c == '\\';
        else if (c == '[' || c == '{')
            deepest = ++depth > deepest ? depth : deepest;
        else if ((c == ']' || c == '}') && depth)
            depth--;
    }
    return deepest > JSON_DEPTH_MAX;
}

// kinds: which of object, array and the scalars (the other bits) will do.
static bool add_json(struct strbuf *out, struct span s, unsigned kinds) {
    // jansson passes over a NUL behind a number.
    if (too_deep(s) || memchr(s.p, 0, s.len)) return false;
    // Whole numbers of any size are fine, so they must not have to fit jansson's.
    json_t *v =
        json_loadb(s.p, s.len, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    bool fits = v && (type_of_value(v) & kinds);
    json_decref(v);
    if (fits) add_spaced(out, s);
    return fits;
}

void argument_add(struct strbuf *out, unsigned types, const char *text, size_t len) {
    struct span s = {text, len};
    unsigned containers = types & (ARGUMENT_OBJECT | ARGUMENT_ARRAY);
    if (types & ARGUMENT_NULL && is_word(s, "null")) {
        strbuf_add_str(out, "null");
        return;
    }
    if (types & ARGUMENT_INTEGER && add_integer(out, s)) return;
    if (types & ARGUMENT_NUMBER && add_number(out, s)) return;
    if (types & ARGUMENT_BOOLEAN && add_boolean(out, s)) return;
    if (containers && add_json(out, s, containers)) return;
    if (!(types & ARGUMENT_STRING) && add_json(out, s, ~0u)) return;
    strbuf_add_char(out, '"');
    pyjson_add_escaped(out, text, len);
    strbuf_add_char(out, '"');
}
