/* tokenizer_file: see tokenizer_file.h. */
#include "router/text/tokenizer_file.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/planted.h"
#include "common/strbuf.h"
#include "router/text/added.h"
#include "router/text/bpe.h"
#include "router/text/pretoken.h"
#include "router/text/utf8.h"
#include "router/text/vocab.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FOUND_CHARS = 60, KEY_CHARS = 120, MERGE_COUNT_MAX = 8 << 20 };

struct file {
    const char *name;
    json_t *root;
    const json_t *words; // model.vocab
    struct tokenizer_parts *parts;
    struct err *e;
};

// How much of a text to show: whole characters, at most max bytes.
static int shown(const char *text, size_t max) {
    return (int)utf8_valid(text, strnlen(text, max));
}

static int refuse(const struct file *f, enum st st, const char *key, const char *wanted,
                  const json_t *found) {
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    int len = text ? shown(text, FOUND_CHARS) : 0;
    err_set(f->e, st, "tokenizer file '%s': %s: wanted %s, found %.*s%s", f->name, key, wanted,
            text ? len : 7, text ? text : "nothing", text && text[len] ? "..." : "");
    free(text);
    return st;
}

static int unsupported(const struct file *f, const char *key, const char *wanted,
                       const json_t *found) {
    return refuse(f, ST_UNSUPPORTED, key, wanted, found);
}

static int corrupt(const struct file *f, const char *key, const char *wanted, const json_t *found) {
    return refuse(f, ST_CORRUPT, key, wanted, found);
}

// What a key may hold. Absent keys pass where may_lack is set.
enum want { WANT_FALSE, WANT_NULL, WANT_NULL_OR_EMPTY, WANT_NO_DROPOUT, WANT_ANY, WANT_TEXT };
struct rule {
    const char *key;
    enum want want;
    const char *text; // for WANT_TEXT
    bool may_lack;
};

static bool passes(const struct rule *r, const json_t *v) {
    if (!v) return r->may_lack;
    switch (r->want) {
    case WANT_FALSE: return json_is_false(v);
    case WANT_NULL: return json_is_null(v);
    case WANT_NULL_OR_EMPTY:
        return json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0);
    case WANT_NO_DROPOUT:
        return json_is_null(v) || (json_is_number(v) && json_number_value(v) == 0);
    case WANT_ANY: return true;
    case WANT_TEXT: return json_is_string(v) && !strcmp(json_string_value(v), r->text);
    }
    return false;
}

static const char *wanted_text(const struct rule *r, char *buf, size_t bytes) {
    static const char *const words[] = {[WANT_FALSE] = "false",
                                        [WANT_NULL] = "null",
                                        [WANT_NULL_OR_EMPTY] = "null or \"\"",
                                        [WANT_NO_DROPOUT] = "null or 0",
                                        [WANT_ANY] = "a value"};
    if (r->want != WANT_TEXT) return words[r->want];
    snprintf(buf, bytes, "\"%s\"", r->text);
    return buf;
}

// Holds an object to a table: every rule passes and no key is without a rule.
static int check_object(const struct file *f, const char *where, const json_t *o,
                        const struct rule *rules, size_t count) {
    if (!json_is_object(o)) return corrupt(f, where, "an object", o);
    char key[KEY_CHARS], buf[KEY_CHARS];
    for (size_t i = 0; i < count; i++) {
        const json_t *v = json_object_get(o, rules[i].key);
        if (passes(&rules[i], v)) continue;
        snprintf(key, sizeof key, "%s%s%s", where, *where ? "." : "", rules[i].key);
        return unsupported(f, key, wanted_text(&rules[i], buf, sizeof buf), v);
    }
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)o, name, v) {
        size_t i = 0;
        while (i < count && strcmp(rules[i].key, name)) i++;
        if (i < count) continue;
        snprintf(key, sizeof key, "%s%s%.*s", where, *where ? "." : "", shown(name, 40), name);
        return unsupported(f, key, "no such key (it may change what the file means)", v);
    }
    return ST_OK;
}
#define CHECK_OBJECT(f, where, o, rules)                                                           \
    check_object(f, where, o, rules, sizeof(rules) / sizeof((rules)[0]))

static int check_top(const struct file *f) {
    static const struct rule rules[] = {
        {"version", WANT_TEXT, "1.0", true},      {"truncation", WANT_NULL, NULL, true},
        {"padding", WANT_NULL, NULL, true},       {"added_tokens", WANT_ANY, NULL, true},
        {"normalizer", WANT_ANY, NULL, true},     {"pre_tokenizer", WANT_ANY, NULL, false},
        {"post_processor", WANT_ANY, NULL, true}, {"decoder", WANT_ANY, NULL, false},
        {"model", WANT_ANY, NULL, false},
    };
    return CHECK_OBJECT(f, "", f->root, rules);
}

static int read_normalizer(const struct file *f) {
    static const struct rule rules[] = {{"type", WANT_TEXT, "NFC", false}};
    const json_t *n = json_object_get(f->root, "normalizer");
    if (!n || json_is_null(n)) return ST_OK;
    f->parts->nfc = true;
    return CHECK_OBJECT(f, "normalizer", n, rules);
}

static int check_byte_level(const struct file *f, const char *where, const json_t *o,
                            bool is_splitter) {
    static const struct rule rules[] = {
        {"type", WANT_TEXT, "ByteLevel", false},
        {"add_prefix_space", WANT_FALSE, NULL, false},
        {"use_regex", WANT_FALSE, NULL, false}, // the last two: for the splitter alone
        {"trim_offsets", WANT_ANY, NULL, true},
    };
    static const struct rule loose[] = {
        {"type", WANT_TEXT, "ByteLevel", false},
        {"add_prefix_space", WANT_ANY, NULL, true},
        {"use_regex", WANT_ANY, NULL, true},
        {"trim_offsets", WANT_ANY, NULL, true},
    };
    return is_splitter ? CHECK_OBJECT(f, where, o, rules) : CHECK_OBJECT(f, where, o, loose);
}

static int read_split(const struct file *f, const char *where, const json_t *o) {
    static const struct rule rules[] = {
        {"type", WANT_TEXT, "Split", false},
        {"pattern", WANT_ANY, NULL, false},
        {"behavior", WANT_TEXT, "Isolated", false},
        {"invert", WANT_FALSE, NULL, false},
    };
    int st = CHECK_OBJECT(f, where, o, rules);
    if (st) return st;
    const json_t *pattern = json_object_get(o, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    if (!json_is_string(regex) || json_object_size(pattern) != 1)
        return unsupported(f, "pre_tokenizer.pretokenizers[0].pattern", "{\"Regex\": text}",
                           pattern);
    st = pretoken_new(&f->parts->pretoken, json_string_value(regex), f->e);
    if (st) err_prefix(f->e, "tokenizer file '%s': %s.pattern.Regex", f->name, where);
    return st;
}

static int read_pre_tokenizer(const struct file *f) {
    static const struct rule rules[] = {{"type", WANT_TEXT, "Sequence", false},
                                        {"pretokenizers", WANT_ANY, NULL, false}};
    const json_t *p = json_object_get(f->root, "pre_tokenizer");
    int st = CHECK_OBJECT(f, "pre_tokenizer", p, rules);
    if (st) return st;
    const json_t *list = json_object_get(p, "pretokenizers");
    if (json_array_size(list) != 2)
        return unsupported(f, "pre_tokenizer.pretokenizers", "[Split, ByteLevel]", list);
    st = read_split(f, "pre_tokenizer.pretokenizers[0]", json_array_get(list, 0));
    if (st) return st;
    return check_byte_level(f, "pre_tokenizer.pretokenizers[1]", json_array_get(list, 1), true);
}

static int check_ends(const struct file *f) {
    const json_t *post = json_object_get(f->root, "post_processor");
    int st = ST_OK;
    if (post && !json_is_null(post)) st = check_byte_level(f, "post_processor", post, false);
    if (st) return st;
    return check_byte_level(f, "decoder", json_object_get(f->root, "decoder"), false);
}

static int check_model(struct file *f) {
    static const struct rule rules[] = {
        {"type", WANT_TEXT, "BPE", true},
        {"dropout", WANT_NO_DROPOUT, NULL, true},
        {"unk_token", WANT_NULL, NULL, true},
        {"continuing_subword_prefix", WANT_NULL_OR_EMPTY, NULL, true},
        {"end_of_word_suffix", WANT_NULL_OR_EMPTY, NULL, true},
        {"fuse_unk", WANT_ANY, NULL, true}, // about unknown tokens, which bytes cannot give
        {"byte_fallback", WANT_FALSE, NULL, true},
        {"ignore_merges", WANT_FALSE, NULL, true},
        {"vocab", WANT_ANY, NULL, false},
        {"merges", WANT_ANY, NULL, false},
    };
    const json_t *model = json_object_get(f->root, "model");
    int st = CHECK_OBJECT(f, "model", model, rules);
    if (st) return st;
    f->words = json_object_get(model, "vocab");
    if (!json_is_object(f->words)) return corrupt(f, "model.vocab", "an object", f->words);
    return ST_OK;
}

/* ---- the byte characters of GPT-2: printable Latin-1 stands for itself, the other 68 bytes ascend from U+0100 ---- */

static bool stands_for_itself(unsigned b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

static uint32_t char_of_byte(unsigned byte) {
    if (stands_for_itself(byte)) return byte;
    uint32_t cp = 0x100;
    for (unsigned b = 0; b < byte; b++) cp += !stands_for_itself(b);
    return cp;
}

struct byte_map {
    int16_t byte[0x144]; // of a character; -1: it stands for none
};

static void byte_map_fill(struct byte_map *m) {
    memset(m->byte, 0xFF, sizeof m->byte);
    for (unsigned b = 0; b < 256; b++) m->byte[char_of_byte(b)] = (int16_t)b;
}

// The bytes a word stands for. One with other characters stands for itself, as the reference decodes it.
static void word_bytes(const struct byte_map *m, const char *word, size_t len, struct strbuf *out) {
    strbuf_reset(out);
    for (size_t i = 0; i < len;) {
        uint32_t cp = 0;
        int n = utf8_read(word + i, len - i, &cp);
        if (n <= 0 || cp >= 0x144 + 32 * PLANTED || m->byte[cp] < 0) {
            strbuf_reset(out);
            strbuf_add(out, word, len);
            return;
        }
        strbuf_add_char(out, (char)m->byte[cp]);
        i += (size_t)n;
    }
}

/* ---- vocabulary ---- */

static int id_of(const struct file *f, const char *where, const json_t *v, uint32_t *ret) {
    if (!json_is_integer(v) || json_integer_value(v) < 0 ||
        json_integer_value(v) > TOKENIZER_ID_MAX)
        return corrupt(f, where, "an id of 0 to 4194303", v);
    *ret = (uint32_t)json_integer_value(v);
    return ST_OK;
}

static void word_key(char buf[KEY_CHARS], const char *word) {
    snprintf(buf, KEY_CHARS, "model.vocab[\"%.*s\"]", shown(word, 60), word);
}

static int vocab_top(const struct file *f, uint32_t *ret) {
    const char *word;
    json_t *v;
    uint32_t top = 0, id;
    char key[KEY_CHARS];
    json_object_foreach((json_t *)f->words, word, v) {
        word_key(key, word);
        int st = id_of(f, key, v, &id);
        if (st) return st;
        if (id + 1 > top) top = id + 1;
    }
    const json_t *added = json_object_get(f->root, "added_tokens");
    for (size_t i = 0; i < json_array_size(added); i++) {
        snprintf(key, sizeof key, "added_tokens[%zu].id", i);
        int st = id_of(f, key, json_object_get(json_array_get(added, i), "id"), &id);
        if (st) return st;
        if (id + 1 > top) top = id + 1;
    }
    *ret = top;
    return ST_OK;
}

static int read_words(const struct file *f) {
    uint32_t top;
    int st = vocab_top(f, &top);
    if (st) return st;
    f->parts->vocab = vocab_new(top);
    struct byte_map map;
    byte_map_fill(&map);
    struct strbuf bytes = {0};
    const char *word;
    size_t len;
    json_t *v;
    json_object_keylen_foreach((json_t *)f->words, word, len, v) {
        char key[KEY_CHARS];
        word_key(key, word);
        if (len == 0 || len > TOKENIZER_TEXT_BYTES_MAX) {
            st = corrupt(f, key, "a word of 1 to 65536 bytes", v);
            break;
        }
        word_bytes(&map, word, len, &bytes);
        if (!vocab_put(f->parts->vocab, (uint32_t)json_integer_value(v), bytes.p, bytes.len, 0)) {
            st = corrupt(f, key, "an id that no other word has", v);
            break;
        }
    }
    strbuf_fini(&bytes);
    return st;
}

static int byte_ids(const struct file *f, uint32_t ret[256]) {
    for (unsigned b = 0; b < 256; b++) {
        char word[5] = {0};
        utf8_write(word, char_of_byte(b));
        const json_t *v = json_object_get(f->words, word);
        if (!v) {
            char wanted[KEY_CHARS];
            snprintf(wanted, sizeof wanted, "a word for every byte (\"%s\" for %02x)", word, b);
            return unsupported(f, "model.vocab", wanted, NULL);
        }
        ret[b] = (uint32_t)json_integer_value(v);
    }
    return ST_OK;
}

/* ---- merges, either as "left right" or as ["left", "right"] ---- */

struct halves {
    const char *left, *right;
    size_t left_len, right_len;
};

static bool split_merge(const json_t *m, struct halves *ret) {
    if (json_is_string(m)) {
        const char *s = json_string_value(m), *blank = strchr(s, ' ');
        if (!blank || strchr(blank + 1, ' ')) return false;
        *ret = (struct halves){s, blank + 1, (size_t)(blank - s), strlen(blank + 1)};
        return true;
    }
    const json_t *left = json_array_get(m, 0), *right = json_array_get(m, 1);
    if (json_array_size(m) != 2 || !json_is_string(left) || !json_is_string(right)) return false;
    *ret = (struct halves){json_string_value(left), json_string_value(right),
                           json_string_length(left), json_string_length(right)};
    return true;
}

static bool find_word(const struct file *f, const char *word, size_t len, uint32_t *ret) {
    const json_t *v = json_object_getn(f->words, word, len);
    if (v) *ret = (uint32_t)json_integer_value(v);
    return v != NULL;
}

static int read_merge(const struct file *f, size_t rank, const json_t *m, struct strbuf *joined) {
    struct halves h;
    uint32_t left, right, merged;
    char key[KEY_CHARS];
    snprintf(key, sizeof key, "model.merges[%zu]", rank);
    if (!split_merge(m, &h)) return corrupt(f, key, "\"left right\" or [left, right]", m);
    strbuf_reset(joined);
    strbuf_add(joined, h.left, h.left_len);
    strbuf_add(joined, h.right, h.right_len);
    if (!find_word(f, h.left, h.left_len, &left) || !find_word(f, h.right, h.right_len, &right) ||
        !find_word(f, joined->p, joined->len, &merged))
        return corrupt(f, key, "both words and the joined one in model.vocab", m);
    bpe_put(f->parts->bpe, left, right, (uint32_t)rank, merged);
    return ST_OK;
}

static int read_merges(const struct file *f) {
    const json_t *merges = json_object_get(json_object_get(f->root, "model"), "merges");
    if (!json_is_array(merges) || json_array_size(merges) > MERGE_COUNT_MAX)
        return corrupt(f, "model.merges", "an array of up to 8388608 merges", merges);
    uint32_t bytes[256];
    int st = byte_ids(f, bytes);
    if (st) return st;
    f->parts->bpe = bpe_new(bytes, json_array_size(merges));
    struct strbuf joined = {0};
    for (size_t i = 0; !st && i < json_array_size(merges); i++)
        st = read_merge(f, i, json_array_get(merges, i), &joined);
    strbuf_fini(&joined);
    return st;
}

/* ---- added tokens ---- */

static int place_added(const struct file *f, const char *key, const json_t *o) {
    static const struct rule rules[] = {
        {"id", WANT_ANY, NULL, false},          {"content", WANT_ANY, NULL, false},
        {"special", WANT_ANY, NULL, false},     {"lstrip", WANT_FALSE, NULL, true},
        {"rstrip", WANT_FALSE, NULL, true},     {"single_word", WANT_FALSE, NULL, true},
        {"normalized", WANT_FALSE, NULL, true},
    };
    int st = CHECK_OBJECT(f, key, o, rules);
    if (st) return st;
    const json_t *text = json_object_get(o, "content"), *special = json_object_get(o, "special");
    size_t len = json_string_length(text);
    if (!json_is_string(text) || len == 0 || len > TOKENIZER_TEXT_BYTES_MAX)
        return corrupt(f, key, "a content of 1 to 65536 bytes", o);
    if (!json_is_boolean(special)) return corrupt(f, key, "special: true or false", o);
    uint32_t id = (uint32_t)json_integer_value(json_object_get(o, "id")), other;
    unsigned flags = VOCAB_ADDED | (json_is_true(special) ? VOCAB_SPECIAL : 0);
    // A token may be listed as a word as well, under the same id.
    bool is_word = find_word(f, json_string_value(text), len, &other);
    if (is_word && other != id)
        return corrupt(f, key, "the id that model.vocab gives the same text", o);
    if (is_word)
        vocab_mark(f->parts->vocab, id, flags);
    else if (!vocab_put(f->parts->vocab, id, json_string_value(text), len, flags))
        return corrupt(f, key, "an id that nothing else has", o);
    if (!added_put(f->parts->added, json_string_value(text), len, id))
        return corrupt(f, key, "a content that no other added token has", o);
    return ST_OK;
}

static int read_added(const struct file *f) {
    const json_t *list = json_object_get(f->root, "added_tokens");
    f->parts->added = added_new();
    if (list && !json_is_null(list) && !json_is_array(list))
        return corrupt(f, "added_tokens", "an array", list);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char key[KEY_CHARS];
        snprintf(key, sizeof key, "added_tokens[%zu]", i);
        int st = place_added(f, key, json_array_get(list, i));
        if (st) return st;
    }
    added_sort(f->parts->added);
    return ST_OK;
}

/* ---- the whole ---- */

static int read_all(struct file *f) {
    int st = check_top(f);
    if (!st) st = read_normalizer(f);
    if (!st) st = read_pre_tokenizer(f);
    if (!st) st = check_ends(f);
    if (!st) st = check_model(f);
    if (!st) st = read_words(f);
    if (!st) st = read_merges(f);
    if (!st) st = read_added(f);
    return st;
}

int tokenizer_file_parse(const char *name, const char *text, size_t len,
                         struct tokenizer_parts *ret, struct err *e) {
    json_error_t je;
    struct file f = {.name = name, .parts = ret, .e = e};
    f.root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    if (!f.root)
        return err_set(e, ST_CORRUPT, "tokenizer file '%s': wanted JSON, found at line %d: %.*s",
                       name, je.line, shown(je.text, sizeof je.text), je.text);
    int st = read_all(&f);
    json_decref(f.root);
    if (st) tokenizer_parts_fini(ret);
    return st;
}

static int read_stream(FILE *in, const char *path, char **ret, size_t *ret_len, struct err *e) {
    struct stat about;
    if (fstat(fileno(in), &about)) return err_errno(e, "tokenizer file '%s': its size", path);
    if (!S_ISREG(about.st_mode) || about.st_size > TOKENIZER_FILE_BYTES_MAX)
        return err_set(e, ST_UNSUPPORTED,
                       "tokenizer file '%s': wanted a file of at most %d bytes, found %s of %lld",
                       path, TOKENIZER_FILE_BYTES_MAX,
                       S_ISREG(about.st_mode) ? "one" : "something else", (long long)about.st_size);
    size_t len = (size_t)about.st_size;
    char *text = mem_alloc(len);
    size_t got = fread(text, 1, len, in);
    if (got != len) {
        free(text);
        return err_set(e, ST_IO, "tokenizer file '%s': wanted %zu bytes, found %zu", path, len,
                       got);
    }
    *ret = text;
    *ret_len = len;
    return ST_OK;
}

int tokenizer_file_read(const char *path, struct tokenizer_parts *ret, struct err *e) {
    FILE *in = fopen(path, "rb");
    if (!in) return err_errno(e, "tokenizer file '%s'", path);
    char *text = NULL;
    size_t len = 0;
    int st = read_stream(in, path, &text, &len, e);
    fclose(in);
    if (st) return st;
    st = tokenizer_file_parse(path, text, len, ret, e);
    free(text);
    return st;
}

void tokenizer_parts_fini(struct tokenizer_parts *p) {
    vocab_free(p->vocab);
    bpe_free(p->bpe);
    added_free(p->added);
    pretoken_free(p->pretoken);
    *p = (struct tokenizer_parts){0};
}
