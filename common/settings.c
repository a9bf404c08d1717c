/* settings: see settings.h. */
#include "common/settings.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/strbuf.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    STRENGTH_DEFAULT = 0,
    STRENGTH_FILE = 1,
    STRENGTH_FLAG = 2,
    FILE_LINE_BYTES = 8192,
    NEAR_MAX = 3
};

static void *field(const struct settings *s, const struct setting *t) {
    return (char *)s->values + t->offset;
}

const struct setting *settings_find(const struct settings *s, const char *name) {
    for (size_t i = 0; i < s->count; i++)
        if (!strcmp(s->table[i].name, name)) return &s->table[i];
    return NULL;
}

static int bad(struct err *e, const struct setting *t, const char *wanted, const char *found) {
    return err_set(e, ST_INVAL, "setting %s: wanted %s, found '%.200s'", t->name, wanted, found);
}

static int parse_bool(const char *v, bool *ret) {
    static const char *const words[][2] = {{"on", "off"}, {"true", "false"}, {"1", "0"}};
    for (size_t i = 0; i < 3; i++) {
        if (!strcmp(v, words[i][0])) return *ret = true, ST_OK;
        if (!strcmp(v, words[i][1])) return *ret = false, ST_OK;
    }
    return ST_INVAL;
}

static int parse_whole(const char *v, bool bytes, int64_t *ret) {
    static const struct {
        const char *suffix;
        int64_t times;
    } units[] = {{"", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    char *end;
    errno = 0;
    long long n = strtoll(v, &end, 10);
    if (end == v || errno) return ST_INVAL;
    while (*end == ' ') end++;
    for (size_t i = 0; i < (bytes ? 4u : 1u); i++) {
        if (strcmp(end, units[i].suffix)) continue;
        return __builtin_mul_overflow((int64_t)n, units[i].times, ret) ? ST_INVAL : ST_OK;
    }
    return ST_INVAL;
}

static bool is_choice(const char *choices, const char *v) {
    size_t n = strcspn(v, "|"); // a list of words is no word
    if (v[n]) return false;
    for (const char *p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (!strncmp(p, v, n) && (p[n] == '|' || p[n] == '\0')) return n > 0;
    return false;
}

static int check_range(const struct setting *t, double x, const char *v, struct err *e) {
    if ((t->min == 0 && t->max == 0) || (x >= t->min && x <= t->max)) return ST_OK;
    bool or_zero = t->kind == SETTING_INT_OR_0;
    if (or_zero && !(x < 0) && !(x > 0)) return ST_OK;
    char wanted[96];
    if (t->kind == SETTING_REAL)
        snprintf(wanted, sizeof wanted, "%.15g to %.15g", t->min, t->max);
    else
        snprintf(wanted, sizeof wanted, "%s%.0f to %.0f", or_zero ? "0 or " : "", t->min, t->max);
    return bad(e, t, wanted, v);
}

static void put_string(char **slot, const char *v) {
    free(*slot);
    *slot = mem_strdup(v);
}

static int store(const struct settings *s, const struct setting *t, const char *v, struct err *e) {
    void *f = field(s, t);
    switch (t->kind) {
    case SETTING_BOOL: {
        bool b;
        if (parse_bool(v, &b)) return bad(e, t, "on or off", v);
        *(bool *)f = b;
        return ST_OK;
    }
    case SETTING_INT:
    case SETTING_INT_OR_0:
    case SETTING_BYTES: {
        int64_t n;
        bool bytes = t->kind == SETTING_BYTES;
        if (parse_whole(v, bytes, &n))
            return bad(e, t, bytes ? "a number of bytes, KiB, MiB or GiB" : "a whole number", v);
        int st = check_range(t, (double)n, v, e);
        if (!st) *(int64_t *)f = n;
        return st;
    }
    case SETTING_REAL: {
        char *end;
        double x = strtod(v, &end);
        if (end == v || *end || !isfinite(x)) return bad(e, t, "a number", v);
        int st = check_range(t, x, v, e);
        if (!st) *(double *)f = x;
        return st;
    }
    case SETTING_CHOICE:
        if (!is_choice(t->choices, v)) return bad(e, t, t->choices, v);
        put_string(f, v);
        return ST_OK;
    case SETTING_STRING:
        if ((double)strlen(v) < t->min) return bad(e, t, "a value", v);
        put_string(f, v);
        return ST_OK;
    }
    return ST_INTERNAL;
}

void settings_init(struct settings *s, const struct setting *table, size_t count, void *values) {
    *s = (struct settings){table, count, values, mem_calloc(count, 1)};
    for (size_t i = 0; i < count; i++) {
        const char *def = table[i].def;
        bool text = table[i].kind == SETTING_STRING || table[i].kind == SETTING_CHOICE;
        if (!def && !text) continue;
        struct err e = {0};
        int st = text && !def ? (put_string(field(s, &table[i]), ""), ST_OK)
                              : store(s, &table[i], def, &e);
        assert(st == ST_OK); // a default outside its own range is our mistake
    }
}

void settings_fini(struct settings *s) {
    for (size_t i = 0; i < s->count; i++) {
        const struct setting *t = &s->table[i];
        if (t->kind != SETTING_STRING && t->kind != SETTING_CHOICE) continue;
        char **slot = field(s, t);
        free(*slot);
        *slot = NULL;
    }
    free(s->given);
    *s = (struct settings){0};
}

// Levenshtein distance, for the "did you mean" of an unknown name.
static size_t distance(const char *a, const char *b) {
    size_t row[128];
    size_t nb = strlen(b);
    if (nb >= 128) return 1000;
    for (size_t j = 0; j <= nb; j++) row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t up = row[j];
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            best = min_size(best, min_size(up + 1, row[j - 1] + 1));
            diagonal = up;
            row[j] = best;
        }
    }
    return row[nb];
}

static int unknown(const struct settings *s, const char *name, struct err *e) {
    const struct setting *near = NULL;
    // A slip changes a letter in three at most; further off, another name is a guess and no help.
    size_t best = min_size(strlen(name) / 3, NEAR_MAX) + 1;
    for (size_t i = 0; i < s->count; i++) {
        size_t d = distance(name, s->table[i].name);
        if (d < best) near = &s->table[i], best = d;
    }
    if (near)
        return err_set(e, ST_INVAL, "no setting '%.100s'; did you mean '%s'?", name, near->name);
    return err_set(e, ST_INVAL, "no setting '%.100s' (--help lists them)", name);
}

int settings_set(struct settings *s, const char *name, const char *value, int strength,
                 struct err *e) {
    const struct setting *t = settings_find(s, name);
    if (!t) return unknown(s, name, e);
    uint8_t *given = &s->given[t - s->table];
    if (*given > strength) return ST_OK;
    int st = store(s, t, value, e);
    if (!st) *given = (uint8_t)strength;
    return st;
}

static char *trim(char *p) {
    while (isspace((unsigned char)*p)) p++;
    char *end = p + strlen(p);
    while (end > p && isspace((unsigned char)end[-1])) *--end = '\0';
    return p;
}

static int read_line(struct settings *s, char *line, struct err *e) {
    char *hash = strchr(line, '#');
    if (hash) *hash = '\0';
    char *p = trim(line);
    if (!*p) return ST_OK;
    char *eq = strchr(p, '=');
    if (!eq) return err_set(e, ST_INVAL, "wanted 'name = value', found '%.100s'", p);
    *eq = '\0';
    return settings_set(s, trim(p), trim(eq + 1), STRENGTH_FILE, e);
}

int settings_read_file(struct settings *s, const char *path, struct err *e) {
    FILE *f = fopen(path, "re");
    if (!f) return err_errno(e, "open settings file '%s'", path);
    char line[FILE_LINE_BYTES];
    int st = ST_OK;
    for (int n = 1; !st && fgets(line, sizeof line, f); n++) {
        if (!strchr(line, '\n') && !feof(f))
            st = err_set(e, ST_INVAL, "a line is longer than %d bytes", FILE_LINE_BYTES - 2);
        else
            st = read_line(s, line, e);
        if (st) err_prefix(e, "%s:%d", path, n);
    }
    if (!st && ferror(f)) st = err_errno(e, "read settings file '%s'", path);
    fclose(f);
    return st;
}

// One flag: "--name=value", "--name value", or "--name" alone for a switch. *i moves past a value taken.
static int parse_flag(struct settings *s, int argc, char **argv, int *i, const char **config,
                      struct err *e) {
    char *flag = argv[*i] + 2;
    char *eq = strchr(flag, '=');
    char *name = mem_strndup(flag, eq ? (size_t)(eq - flag) : strlen(flag));
    bool is_config = !strcmp(name, "config");
    const struct setting *t = settings_find(s, name);
    const char *value = eq ? eq + 1 : NULL;
    int st = ST_OK;
    if (!value && t && t->kind == SETTING_BOOL)
        value = "on";
    else if (!value && (t || is_config) && *i + 1 < argc)
        value = argv[++*i];
    if (!is_config && !t)
        st = unknown(s, name, e);
    else if (!value)
        st = err_set(e, ST_INVAL, "--%s: wanted a value, found none", name);
    else if (is_config)
        *config = value;
    else
        st = settings_set(s, name, value, STRENGTH_FLAG, e);
    free(name);
    return st;
}

int settings_parse(struct settings *s, int argc, char **argv, const char **args, int *ret_args,
                   struct err *e) {
    const char *config = NULL;
    int n = 0;
    bool flags = true;
    for (int i = 0; i < argc; i++) {
        if (flags && !strcmp(argv[i], "--")) {
            flags = false;
        } else if (flags && !strncmp(argv[i], "--", 2)) {
            int st = parse_flag(s, argc, argv, &i, &config, e);
            if (st) return st;
        } else {
            args[n++] = argv[i];
        }
    }
    *ret_args = n;
    return config ? settings_read_file(s, config, e) : ST_OK;
}

void settings_print(const struct settings *s, const struct setting *t, struct strbuf *out) {
    const void *f = field(s, t);
    switch (t->kind) {
    case SETTING_BOOL: strbuf_add_str(out, *(const bool *)f ? "on" : "off"); return;
    case SETTING_INT:
    case SETTING_INT_OR_0:
    case SETTING_BYTES: strbuf_printf(out, "%lld", (long long)*(const int64_t *)f); return;
    case SETTING_REAL: strbuf_printf(out, "%.15g", *(const double *)f); return;
    case SETTING_STRING:
    case SETTING_CHOICE: strbuf_add_str(out, *(char *const *)f); return;
    }
}

void settings_help(const struct settings *s, FILE *out) {
    fprintf(out, "  --config=FILE\n        lines 'name = value', weaker than flags\n");
    for (size_t i = 0; i < s->count; i++) {
        const struct setting *t = &s->table[i];
        fprintf(out, "  --%s=%s\n        %s", t->name,
                t->choices                ? t->choices
                : t->kind == SETTING_BOOL ? "on|off"
                                          : "VALUE",
                t->help);
        if (t->unit) fprintf(out, " [%s]", t->unit);
        if (t->def && *t->def) fprintf(out, " (default %s)", t->def);
        fputc('\n', out);
    }
}
