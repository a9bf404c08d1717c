/* model: see model.h. */
#include "router/model.h"
#include "common/err.h"
#include "common/ids.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "router/text/tokenizer.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CONFIG_BYTES_MAX = 16 << 20 };

// Reads dir/name. An absent file leaves *ret NULL and is ST_OK only when optional.
static int read_json(const char *dir, const char *name, bool optional, json_t **ret,
                     struct err *e) {
    struct strbuf path = {0};
    strbuf_printf(&path, "%s/%s", dir, name);
    struct stat sb;
    int st = ST_OK;
    json_error_t why;
    if (stat(path.p, &sb)) {
        st = optional ? ST_OK : err_errno(e, "open '%s'", path.p);
        goto out;
    }
    if (sb.st_size > CONFIG_BYTES_MAX) {
        st = err_set(e, ST_CORRUPT, "'%s': wanted at most %d bytes, found %lld", path.p,
                     CONFIG_BYTES_MAX, (long long)sb.st_size);
        goto out;
    }
    json_t *v = json_load_file(path.p, 0, &why);
    if (!v || !json_is_object(v)) {
        st = err_set(e, ST_CORRUPT, "'%s': wanted a JSON object: line %d: %s", path.p, why.line,
                     v ? "found something else" : why.text);
        json_decref(v);
        goto out;
    }
    *ret = v;
out:
    strbuf_fini(&path);
    return st;
}

static int read_u32(const json_t *o, const char *file, const char *key, uint32_t *ret,
                    struct err *e) {
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return ST_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
        return err_set(e, ST_CORRUPT, "%s: %s: wanted a whole number, found something else", file,
                       key);
    *ret = (uint32_t)json_integer_value(v);
    return ST_OK;
}

static int read_real(const json_t *o, const char *file, const char *key, double min, double max,
                     double *ret, struct err *e) {
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return ST_OK;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= min && x <= max))
        return err_set(e, ST_CORRUPT, "%s: %s: wanted a number from %g to %g", file, key, min, max);
    *ret = x;
    return ST_OK;
}

static void add_stop(struct ids *l, uint32_t id) {
    for (size_t i = 0; i < l->len; i++)
        if (l->v[i] == id) return;
    ids_add(l, id);
}

// eos_token_id: one id or a list of them.
static int read_eos(const struct model *m, const json_t *o, const char *file, struct ids *stops,
                    struct err *e) {
    const json_t *v = json_object_get(o, "eos_token_id");
    if (!v || json_is_null(v)) return ST_OK;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        json_int_t id = json_is_integer(one) ? json_integer_value(one) : -1;
        if (id < 0 || !tokenizer_id_used(m->tokenizer, (uint32_t)id) || id > UINT32_MAX)
            return err_set(e, ST_CORRUPT,
                           "%s: eos_token_id: wanted ids of the tokenizer, found %lld", file,
                           (long long)id);
        add_stop(stops, (uint32_t)id);
    }
    return ST_OK;
}

// Of another family nothing else needs to be right. A file that does not say is the worker's to judge.
static int check_family(const struct model *m, struct err *e) {
    json_t *config = NULL;
    int st = read_json(m->dir, "config.json", false, &config, e);
    if (st) return st;
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (type && strncmp(type, "qwen3_5", 7))
        st = err_set(e, ST_UNSUPPORTED,
                     "config.json: model_type: wanted qwen3_5 or qwen3_5_moe, found '%.64s'", type);
    json_decref(config);
    return st;
}

static int read_config(struct model *m, struct ids *stops, struct err *e) {
    json_t *config = NULL;
    int st = read_json(m->dir, "config.json", false, &config, e);
    if (st) return st;
    const json_t *text = json_object_get(config, "text_config");
    if (!json_is_object(text)) text = config;
    st = read_u32(text, "config.json", "vocab_size", &m->vocab_size, e);
    if (!st) st = read_u32(text, "config.json", "max_position_embeddings", &m->context_max, e);
    if (!st && (m->vocab_size == 0 || m->context_max == 0))
        st = err_set(e, ST_CORRUPT,
                     "config.json: wanted vocab_size and max_position_embeddings, found %s",
                     m->vocab_size ? "no max_position_embeddings" : "no vocab_size");
    if (!st) st = read_eos(m, config, "config.json", stops, e);
    if (!st && text != config) st = read_eos(m, text, "config.json: text_config", stops, e);
    if (!st && m->vocab_size < tokenizer_size(m->tokenizer))
        st = err_set(e, ST_CORRUPT,
                     "config.json: vocab_size: wanted at least the tokenizer's %u, found %u",
                     tokenizer_size(m->tokenizer), m->vocab_size);
    json_decref(config);
    return st;
}

static int read_generation(struct model *m, struct ids *stops, struct err *e) {
    static const char file[] = "generation_config.json";
    json_t *g = NULL;
    m->sampling.temperature = m->sampling.top_p = m->sampling.repetition = 1;
    int st = read_json(m->dir, file, true, &g, e);
    if (st || !g) return st;
    st = read_real(g, file, "temperature", 0, 2, &m->sampling.temperature, e);
    if (!st) st = read_real(g, file, "top_p", 0, 1, &m->sampling.top_p, e);
    if (!st) st = read_real(g, file, "min_p", 0, 1, &m->sampling.min_p, e);
    if (!st) st = read_real(g, file, "repetition_penalty", 1e-3, 2, &m->sampling.repetition, e);
    if (!st) st = read_u32(g, file, "top_k", &m->sampling.top_k, e);
    if (!st) st = read_eos(m, g, file, stops, e);
    json_decref(g);
    return st;
}

// tokenizer_config.json names its eos by text, as a string or as an added-token object.
static int read_tokenizer_config(struct model *m, struct ids *stops, struct err *e) {
    json_t *t = NULL;
    int st = read_json(m->dir, "tokenizer_config.json", true, &t, e);
    if (st || !t) return st;
    const json_t *eos = json_object_get(t, "eos_token");
    if (json_is_object(eos)) eos = json_object_get(eos, "content");
    if (json_is_string(eos)) {
        int64_t id = tokenizer_find(m->tokenizer, json_string_value(eos));
        if (id < 0)
            st = err_set(e, ST_CORRUPT,
                         "tokenizer_config.json: eos_token: '%.64s' is no added token",
                         json_string_value(eos));
        else
            add_stop(stops, (uint32_t)id);
    }
    json_decref(t);
    return st;
}

static int compare_u32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int make_ranges(struct model *m, struct err *e) {
    struct frame_range *r = mem_alloc(FRAME_RANGES_MAX * sizeof *r);
    m->vocab.used = r;
    uint32_t n = 0;
    for (uint32_t id = 0; id < tokenizer_size(m->tokenizer); id++) {
        if (!tokenizer_id_used(m->tokenizer, id)) continue;
        if (n && r[n - 1].first + r[n - 1].count == id) {
            r[n - 1].count++;
            continue;
        }
        if (n == FRAME_RANGES_MAX)
            return err_set(e, ST_UNSUPPORTED, "tokenizer.json: ids in use form more than %d ranges",
                           FRAME_RANGES_MAX);
        r[n++] = (struct frame_range){id, 1};
    }
    m->vocab.used_count = n;
    return ST_OK;
}

// The vocabulary as a worker needs it. Lists are little-endian words, as every host that we build for has them.
static int make_vocab(struct model *m, struct ids *stops, struct err *e) {
    struct ids special = {0};
    for (uint32_t id = 0; id < tokenizer_size(m->tokenizer); id++)
        if (tokenizer_id_used(m->tokenizer, id) && tokenizer_is_special(m->tokenizer, id))
            ids_add(&special, id);
    if (stops->len) qsort(stops->v, stops->len, sizeof *stops->v, compare_u32);
    m->stop_ids = stops->v;
    m->stop_count = (uint32_t)stops->len;
    *stops = (struct ids){0};
    m->special_ids = special.v;
    m->vocab = (struct frame_vocab){
        .size = m->vocab_size,
        .stop = {(const uint8_t *)m->stop_ids, m->stop_count},
        .special = {(const uint8_t *)m->special_ids, (uint32_t)special.len},
        .think_open = tokenizer_find(m->tokenizer, "<think>"),
        .think_close = tokenizer_find(m->tokenizer, "</think>"),
        .tool_open = tokenizer_find(m->tokenizer, "<tool_call>"),
    };
    return make_ranges(m, e);
}

static void add_name(struct model *m, const char *s, size_t len) {
    while (len && s[0] == ' ') s++, len--;
    while (len && s[len - 1] == ' ') len--;
    if (!len) return;
    m->names = mem_realloc_array(m->names, m->name_count + 1, sizeof *m->names);
    m->names[m->name_count++] = mem_strndup(s, len);
}

static void make_names(struct model *m, const struct model_config *c) {
    const char *name = *c->name ? c->name : m->dir_name;
    add_name(m, name, strlen(name));
    for (const char *p = c->aliases; *p;) {
        size_t n = strcspn(p, ",");
        add_name(m, p, n);
        p += n + (p[n] == ',');
    }
}

static int open_dir(struct model *m, const char *dir, struct err *e) {
    m->dir = realpath(dir, NULL);
    if (!m->dir) return err_errno(e, "open model '%s'", dir);
    struct stat sb;
    if (stat(m->dir, &sb)) return err_errno(e, "open model '%s'", dir);
    if (!S_ISDIR(sb.st_mode))
        return err_set(e, ST_INVAL, "model '%s': wanted a folder with config.json, found a file",
                       dir);
    m->created_s = sb.st_mtime;
    const char *slash = strrchr(m->dir, '/');
    m->dir_name = mem_strdup(slash && slash[1] ? slash + 1 : m->dir);
    return ST_OK;
}

static int open_template(struct model *m, const char *rules, struct err *e) {
    if (!strcmp(rules, "auto")) return template_detect(m->dir, &m->rules, &m->rules_why, e);
    m->rules_why = "named by template.rules";
    int st = template_rules_parse(rules, &m->rules);
    return st ? err_set(e, st, "template.rules: no rule set '%.64s'", rules) : ST_OK;
}

int model_open(struct model **ret, const struct model_config *c, struct err *e) {
    struct model *m = mem_calloc(1, sizeof *m);
    struct ids stops = {0};
    struct strbuf path = {0};
    int st = open_dir(m, c->dir, e);
    if (st) goto out;
    make_names(m, c);
    strbuf_printf(&path, "%s/tokenizer.json", m->dir);
    st = check_family(m, e);
    if (!st) st = tokenizer_open(&m->tokenizer, path.p, e);
    if (!st) st = read_config(m, &stops, e);
    if (!st) st = read_generation(m, &stops, e);
    if (!st) st = read_tokenizer_config(m, &stops, e);
    if (!st) st = open_template(m, c->rules, e);
    if (!st) st = make_vocab(m, &stops, e);
    if (st) goto out;
    *ret = m;
    m = NULL;
out:
    strbuf_fini(&path);
    ids_fini(&stops);
    model_close(m);
    return st;
}

void model_close(struct model *m) {
    if (!m) return;
    tokenizer_free(m->tokenizer);
    for (size_t i = 0; i < m->name_count; i++) free(m->names[i]);
    free(m->names);
    free(m->dir);
    free(m->dir_name);
    free(m->stop_ids);
    free(m->special_ids);
    free(m->vocab.used);
    free(m);
}

bool model_has_name(const struct model *m, const char *name, size_t len) {
    for (size_t i = 0; i < m->name_count; i++)
        if (strlen(m->names[i]) == len && !memcmp(m->names[i], name, len)) return true;
    return false;
}

bool model_is_stop_id(const struct model *m, uint32_t id) {
    for (uint32_t i = 0; i < m->stop_count; i++)
        if (m->stop_ids[i] == id) return true;
    return false;
}
