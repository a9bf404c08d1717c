/* bench_prompts: see bench_prompts.h. */
#include "router/bench_prompts.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/sha256.h"
#include "common/strbuf.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Code repeats itself and names things again and again, chat does not: drafts gain much on the first, little on the
// second. So the two classes are never averaged.
static const struct {
    enum bench_class class;
    const char *text;
} builtin[] = {
    {BENCH_CODE, "Write a C function that reverses a singly linked list in place, with a comment "
                 "for each step, and a main function that tests it on the list 1 2 3 4 5."},
    {BENCH_CODE, "Rename the variable n to count everywhere and change nothing else:\n\n```c\nint "
                 "sum(const int *v, int n) {\n    int total = 0;\n    for (int i = 0; i < n; i++) "
                 "total += v[i];\n    return n ? total : 0;\n}\n```"},
    {BENCH_CODE, "Make a JSON array of ten people. Each has the keys name, age, city and email, in "
                 "this order. Indent it by two spaces."},
    {BENCH_CODE, "Write a Python class Stack with push, pop, peek, is_empty and size, type hints "
                 "and docstrings, and five unit tests for it."},
    {BENCH_CODE, "Turn this table into SQL: one CREATE TABLE and an INSERT for each row.\n\nid, "
                 "fruit, colour, price\n1, apple, red, 0.40\n2, pear, green, 0.55\n3, plum, blue, "
                 "0.30\n4, lemon, yellow, 0.65"},
    {BENCH_CODE, "Write a shell script that prints the ten largest files below a folder given as "
                 "its argument, with sizes for people, and refuses a missing folder."},
    {BENCH_CODE, "Explain line by line, then rewrite without recursion:\n\n```python\ndef "
                 "gcd(a, b):\n    if b == 0:\n        return a\n    return gcd(b, a % b)\n```"},
    {BENCH_CODE, "Write an HTML page with a form of six labelled fields, a submit button, and "
                 "style rules for a narrow and a wide window."},
    {BENCH_CHAT, "Tell me a story about a baker who finds a map in a loaf of bread."},
    {BENCH_CHAT, "Why is the sky blue in the day and red in the evening? Explain it to a child."},
    {BENCH_CHAT, "I have a free Saturday, rain outside and two bored children. What shall we do?"},
    {BENCH_CHAT, "Give me three reasons to learn to play an instrument late in life, and one "
                 "against it."},
    {BENCH_CHAT, "Describe an old harbour at dawn so that I can smell it."},
    {BENCH_CHAT, "A friend of mine has not answered for weeks. How do I write without sounding "
                 "hurt?"},
    {BENCH_CHAT, "What would change in a city if nobody owned a car any more? Think of mornings, "
                 "shops and old people."},
    {BENCH_CHAT, "Write a letter from a lighthouse keeper to her brother in the mountains."},
};

void bench_prompts_fini(struct bench_prompts *p) {
    for (size_t i = 0; i < p->count; i++) json_decref(p->v[i].messages);
    free(p->v);
    memset(p, 0, sizeof *p);
}

// Takes the reference to messages.
static void add(struct bench_prompts *p, enum bench_class class, json_t *messages) {
    p->v = mem_realloc_array(p->v, p->count + 1, sizeof *p->v);
    p->v[p->count++] = (struct bench_prompt){class, messages};
}

static void set_digest(struct bench_prompts *p) {
    struct sha256 *h = sha256_new();
    for (size_t i = 0; i < p->count; i++) {
        const char *name = bench_class_name(p->v[i].class);
        char *text = json_dumps(p->v[i].messages, JSON_COMPACT | JSON_SORT_KEYS);
        sha256_add(h, name, strlen(name) + 1); // the NULs keep the parts apart
        sha256_add(h, text, strlen(text) + 1);
        free(text);
    }
    uint8_t digest[SHA256_BYTES];
    sha256_digest(h, digest);
    sha256_hex(digest, p->sha256);
    sha256_free(h);
}

static json_t *user_message(const char *text) {
    return json_pack("[{s:s,s:s}]", "role", "user", "content", text);
}

void bench_prompts_builtin(struct bench_prompts *ret) {
    *ret = (struct bench_prompts){0};
    for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++)
        add(ret, builtin[i].class, user_message(builtin[i].text));
    set_digest(ret);
}

/* ---- a file of them ---- */

struct place {
    const char *file;
    size_t line;
};

static int refuse(const struct place *at, struct err *e, const char *wanted, const char *found) {
    return err_set(e, ST_INVAL, "%.200s line %zu: wanted %s, found %.100s", at->file, at->line,
                   wanted, found);
}

static int read_class(const json_t *o, bool need, const struct place *at, enum bench_class *ret,
                      struct err *e) {
    static const char wanted[] = "\"class\" code or chat";
    const json_t *v = json_object_get(o, "class");
    const char *s = json_string_value(v);
    *ret = BENCH_CHAT;
    if (!v && !need) return ST_OK;
    if (!s) return refuse(at, e, wanted, v ? "something that is no string" : "none");
    if (!strcmp(s, "code"))
        *ret = BENCH_CODE;
    else if (strcmp(s, "chat"))
        return refuse(at, e, wanted, s);
    return ST_OK;
}

static bool is_messages(const json_t *v) {
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_object_get(json_array_get(v, i), "role"))) return false;
    return json_array_size(v) > 0;
}

static int read_messages(const json_t *o, const struct place *at, json_t **ret, struct err *e) {
    json_t *messages = json_object_get(o, "messages");
    const json_t *prompt = json_object_get(o, "prompt");
    if (!messages == !prompt)
        return refuse(at, e, "either \"messages\" or \"prompt\"", prompt ? "both" : "neither");
    if (prompt && !json_string_length(prompt))
        return refuse(at, e, "\"prompt\" to be text", "something else");
    if (messages && !is_messages(messages))
        return refuse(at, e, "\"messages\" to be an array of messages with roles",
                      "something else");
    *ret = messages ? json_incref(messages) : user_message(json_string_value(prompt));
    return ST_OK;
}

static int check_keys(json_t *o, const struct place *at, struct err *e) {
    static const char *const known[] = {"class", "messages", "prompt", "name"};
    const char *key;
    json_t *v;
    json_object_foreach(o, key, v) {
        bool ok = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) ok |= !strcmp(key, known[i]);
        if (!ok) return refuse(at, e, "class, messages, prompt or name", key);
    }
    return ST_OK;
}

static int parse_line(struct bench_prompts *p, const char *line, size_t len, bool need_class,
                      const struct place *at, struct err *e) {
    json_error_t why;
    json_t *o = json_loadb(line, len, 0, &why), *messages = NULL;
    enum bench_class class;
    int st = json_is_object(o) ? check_keys(o, at, e)
                               : refuse(at, e, "a JSON object", o ? "another value" : why.text);
    if (!st) st = read_class(o, need_class, at, &class, e);
    if (!st) st = read_messages(o, at, &messages, e);
    if (!st) add(p, class, messages);
    json_decref(o);
    return st;
}

int bench_prompts_parse(struct bench_prompts *ret, const char *name, const char *text, size_t len,
                        bool need_class, struct err *e) {
    struct bench_prompts p = {0};
    struct place at = {name, 0};
    int st = ST_OK;
    while (len && !st) {
        const char *lf = memchr(text, '\n', len);
        size_t n = lf ? (size_t)(lf - text) : len, blank = 0;
        at.line++;
        while (blank < n && strchr(" \t\r", text[blank]) && text[blank]) blank++;
        if (blank < n) st = parse_line(&p, text, n, need_class, &at, e);
        n += lf != NULL;
        text += n;
        len -= n;
    }
    if (!st && !p.count) st = err_set(e, ST_INVAL, "%.200s: wanted prompts, found none", name);
    if (st) {
        bench_prompts_fini(&p);
        return st;
    }
    set_digest(&p);
    *ret = p;
    return ST_OK;
}

int bench_prompts_read(struct bench_prompts *ret, const char *path, bool need_class,
                       struct err *e) {
    FILE *f = fopen(path, "re");
    if (!f) return err_errno(e, "open prompts '%.200s'", path);
    struct strbuf text = {0};
    char chunk[16384];
    size_t n;
    int st = ST_OK;
    while (!st && (n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        strbuf_add(&text, chunk, n);
        if (text.len > BENCH_PROMPTS_BYTES_MAX)
            st = err_set(e, ST_INVAL, "prompts '%.200s': wanted at most %d bytes, found more", path,
                         BENCH_PROMPTS_BYTES_MAX);
    }
    if (!st && ferror(f)) st = err_errno(e, "read prompts '%.200s'", path);
    fclose(f);
    if (!st) st = bench_prompts_parse(ret, path, strbuf_str(&text), text.len, need_class, e);
    strbuf_fini(&text);
    return st;
}

const struct bench_prompt *bench_prompts_at(const struct bench_prompts *p, enum bench_class class,
                                            uint32_t number) {
    uint32_t of_class = 0;
    for (size_t i = 0; i < p->count; i++) of_class += p->v[i].class == class;
    if (!of_class) return NULL;
    number %= of_class;
    for (size_t i = 0;; i++)
        if (p->v[i].class == class && number-- == 0) return &p->v[i];
}
