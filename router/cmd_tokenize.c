/* cmd_tokenize: railyard tokenize DIR: one JSON string a line on stdin, one JSON array of ids a line on stdout.
 * Control tokens in the text are recognised, as in POST /tokenize. */
#include "common/err.h"
#include "common/ids.h"
#include "common/strbuf.h"
#include "router/cmd.h"
#include "router/text/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int encode_line(const struct tokenizer *t, const char *line, size_t len, struct strbuf *out,
                       struct err *e) {
    json_error_t why;
    json_t *v = json_loadb(line, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    struct ids ids = {0};
    int st;
    if (json_is_string(v))
        st = tokenizer_encode(t, json_string_value(v), json_string_length(v), NULL, 0, &ids, e);
    else
        st =
            err_set(e, ST_INVAL, "wanted a JSON string, found %s", v ? "something else" : why.text);
    strbuf_reset(out);
    strbuf_add_char(out, '[');
    for (size_t i = 0; i < ids.len; i++) strbuf_printf(out, i ? ", %u" : "%u", ids.v[i]);
    strbuf_add_str(out, "]\n");
    ids_fini(&ids);
    json_decref(v);
    return st;
}

static int encode_all(const struct tokenizer *t, struct err *e) {
    char *line = NULL;
    size_t cap = 0, number = 0;
    ssize_t n;
    struct strbuf out = {0};
    int st = ST_OK;
    while (!st && (n = getline(&line, &cap, stdin)) > 0) {
        number++;
        st = encode_line(t, line, (size_t)n, &out, e);
        if (st)
            err_prefix(e, "line %zu", number);
        else
            fwrite(out.p, 1, out.len, stdout);
    }
    if (!st && fflush(stdout)) st = err_errno(e, "write to stdout");
    strbuf_fini(&out);
    free(line);
    return st;
}

int cmd_tokenize(int argc, char **argv) {
    if (argc != 1 || argv[0][0] == '-') {
        fprintf(stderr, "use: railyard tokenize DIR  (DIR holds a tokenizer.json)\n");
        return 2;
    }
    struct strbuf path = {0};
    struct tokenizer *t = NULL;
    struct err e = {0};
    strbuf_printf(&path, "%s/tokenizer.json", argv[0]);
    int st = tokenizer_open(&t, path.p, &e);
    if (!st) st = encode_all(t, &e);
    if (st) fprintf(stderr, "railyard tokenize: %s\n", e.msg);
    tokenizer_free(t);
    strbuf_fini(&path);
    return st ? 1 : 0;
}
