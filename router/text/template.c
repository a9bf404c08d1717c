/* template: see template.h; the rules themselves are in template_qwen.c. */
#include "router/text/template.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/sha256.h"
#include "router/text/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TEMPLATE_FILE_BYTES_MAX = 4 << 20 };

static const struct {
    const char *name;
    enum template_rules rules;
} names[] = {
    {"3.5", TEMPLATE_3_5}, {"3.5-small", TEMPLATE_3_5_SMALL}, {"3.6", TEMPLATE_3_6},
    {"3.8", TEMPLATE_3_8}, {"3.8-large", TEMPLATE_3_8_LARGE},
};
enum { NAMES_COUNT = sizeof names / sizeof names[0] };

int template_rules_parse(const char *name, enum template_rules *ret) {
    for (size_t i = 0; i < NAMES_COUNT; i++) {
        if (strcmp(names[i].name, name)) continue;
        *ret = names[i].rules;
        return ST_OK;
    }
    return ST_INVAL;
}

const char *template_rules_name(enum template_rules rules) {
    for (size_t i = 0; i < NAMES_COUNT; i++)
        if (names[i].rules == rules) return names[i].name;
    return "none";
}

/* ---- which rules a template text asks for ---- */

static bool by_hash(const char *text, size_t len, enum template_rules *ret) {
    static const struct {
        const char *head; // of the SHA-256 of the published file
        enum template_rules rules;
    } known[] = {
        {"273d8e0e683b8850", TEMPLATE_3_5_SMALL}, {"a4aee8afcf2e0711", TEMPLATE_3_5},
        {"e84f32a23fdda276", TEMPLATE_3_6},       {"c3cf9e34abf4f9e3", TEMPLATE_3_8},
        {"40ce34a5bcbc0231", TEMPLATE_3_8_LARGE},
    };
    struct sha256 *h = sha256_new();
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX_BYTES];
    sha256_add(h, text, len);
    sha256_digest(h, digest);
    sha256_hex(digest, hex);
    sha256_free(h);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strncmp(hex, known[i].head, 16)) continue;
        *ret = known[i].rules;
        return true;
    }
    return false;
}

// Thinking is off by default where the closed thought is the last branch of the generation prompt.
static bool closes_by_default(const char *text) {
    const char *last = NULL;
    for (const char *p = text; (p = strstr(p, "enable_thinking")); p++) last = p;
    const char *otherwise = last ? strstr(last, "else") : NULL;
    return otherwise && strstr(otherwise, "</think>");
}

static bool by_features(const char *text, enum template_rules *ret) {
    static const char *const needed[] = {"<|im_start|>", "<think>",
                                         "<function=", "<tool_response>"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (!strstr(text, needed[i])) return false;
    if (strstr(text, "preserve_thinking is undefined"))
        *ret =
            strstr(text, "Disabling thinking is not supported") ? TEMPLATE_3_8_LARGE : TEMPLATE_3_8;
    else if (strstr(text, "preserve_thinking"))
        *ret = TEMPLATE_3_6;
    else if (strstr(text, "enable_thinking"))
        *ret = closes_by_default(text) ? TEMPLATE_3_5_SMALL : TEMPLATE_3_5;
    else
        return false;
    return true;
}

/* ---- the files of a checkpoint ---- */

// *ret: the file's bytes with a NUL behind them, or NULL when there is no such file.
static int read_text(const char *path, char **ret, size_t *ret_len, struct err *e) {
    FILE *in = fopen(path, "rb");
    if (!in && errno == ENOENT) return *ret = NULL, ST_OK;
    if (!in) return err_errno(e, "chat template '%s'", path);
    struct stat about;
    int st = ST_OK;
    char *text = NULL;
    if (fstat(fileno(in), &about)) {
        st = err_errno(e, "chat template '%s': its size", path);
        goto out;
    }
    if (!S_ISREG(about.st_mode) || about.st_size > TEMPLATE_FILE_BYTES_MAX) {
        st = err_set(e, ST_UNSUPPORTED, "chat template '%s': wanted a file of at most %d bytes",
                     path, TEMPLATE_FILE_BYTES_MAX);
        goto out;
    }
    text = mem_alloc((size_t)about.st_size + 1);
    *ret_len = fread(text, 1, (size_t)about.st_size, in);
    text[*ret_len] = '\0';
    if (*ret_len != (size_t)about.st_size) {
        st = err_set(e, ST_IO, "chat template '%s': wanted %lld bytes, found %zu", path,
                     (long long)about.st_size, *ret_len);
        goto out;
    }
    *ret = text;
    text = NULL;
out:
    free(text);
    fclose(in);
    return st;
}

// The template of tokenizer_config.json: a text, or a list of named ones of which "default" counts.
static const json_t *config_template(const json_t *config) {
    const json_t *t = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(t); i++) {
        const json_t *item = json_array_get(t, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && !strcmp(name, "default")) return json_object_get(item, "template");
    }
    return t;
}

static int read_config_template(const char *path, char **ret, size_t *ret_len, struct err *e) {
    char *text;
    size_t len;
    int st = read_text(path, &text, &len, e);
    if (st) return st;
    *ret = NULL;
    if (!text) return ST_OK;
    json_error_t je;
    json_t *config = json_loadb(text, len, 0, &je);
    free(text);
    if (!config)
        return err_set(e, ST_CORRUPT, "'%s': wanted JSON, found at line %d: %.*s", path, je.line,
                       (int)utf8_valid(je.text, strlen(je.text)), je.text);
    const json_t *t = config_template(config);
    if (json_is_string(t)) {
        *ret_len = json_string_length(t);
        *ret = mem_strndup(json_string_value(t), *ret_len);
    }
    json_decref(config);
    return ST_OK;
}

static int pick(const char *path, const char *text, size_t len, bool from_config,
                enum template_rules *ret, const char **ret_why, struct err *e) {
    if (by_hash(text, len, ret)) {
        *ret_why = from_config ? "the hash of tokenizer_config.json's chat_template"
                               : "the hash of chat_template.jinja";
        return ST_OK;
    }
    if (by_features(text, ret)) {
        *ret_why = from_config ? "features of tokenizer_config.json's chat_template"
                               : "features of chat_template.jinja";
        return ST_OK;
    }
    return err_set(e, ST_UNSUPPORTED,
                   "chat template '%s': wanted one of Qwen3.5, 3.6 or 3.8, found another; name its "
                   "rules with --template.rules=3.5, 3.5-small, 3.6, 3.8 or 3.8-large",
                   path);
}

int template_detect(const char *model_dir, enum template_rules *ret, const char **ret_why,
                    struct err *e) {
    char path[4096];
    char *text = NULL;
    size_t len = 0;
    bool from_config = false;
    if (snprintf(path, sizeof path, "%s/chat_template.jinja", model_dir) >= (int)sizeof path - 16)
        return err_set(e, ST_INVAL, "model folder: wanted a path of at most 4000 bytes");
    int st = read_text(path, &text, &len, e);
    if (!st && !text) {
        from_config = true;
        snprintf(path, sizeof path, "%s/tokenizer_config.json", model_dir);
        st = read_config_template(path, &text, &len, e);
    }
    if (st) return st;
    if (!text)
        return err_set(e, ST_NOT_FOUND,
                       "chat template: wanted '%s/chat_template.jinja' or a chat_template in "
                       "'%s/tokenizer_config.json', found neither",
                       model_dir, model_dir);
    st = pick(path, text, len, from_config, ret, ret_why, e);
    free(text);
    return st;
}
