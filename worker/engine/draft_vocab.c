/* draft_vocab: see draft_vocab.h. */
#include "worker/engine/draft_vocab.h"
#include "common/err.h"
#include "common/num.h"
#include "common/strbuf.h"
#include "worker/engine/json_text.h"
#include "worker/engine/small_file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static int not_spans(const char *setting, uint32_t vocab, struct err *e) {
    return err_set(e, ST_INVAL,
                   "draft-vocab: wanted auto, all, or up to %d spans FIRST-LAST, ascending and "
                   "apart, of ids below %u, found '%.200s'",
                   DRAFT_PARTS_MAX, vocab, setting);
}

// An id of the list. False: there is none, or it is too large.
static bool take_id(const char **at, uint32_t vocab, uint32_t *ret) {
    char *end;
    if (**at < '0' || **at > '9') return false;
    unsigned long long id = strtoull(*at, &end, 10);
    *at = end;
    *ret = (uint32_t)min_u64(id, UINT32_MAX);
    return id < vocab;
}

static int parse(struct draft_vocab *ret, const char *setting, uint32_t vocab, struct err *e) {
    uint32_t end = 0, first, last;
    for (const char *at = setting;; at++) {
        if (ret->count == DRAFT_PARTS_MAX || !take_id(&at, vocab, &first))
            return not_spans(setting, vocab, e);
        last = first;
        if (*at == '-' && (at++, !take_id(&at, vocab, &last))) return not_spans(setting, vocab, e);
        if (last < first || first < end || (*at && *at != ',')) return not_spans(setting, vocab, e);
        ret->spans[ret->count++] = (struct engine_range){first, last - first + 1};
        end = last + 1;
        if (!*at) return ST_OK;
    }
}

// The first added id that is not common; vocab where there is none.
static int find_tail(uint32_t *ret, const json_t *root, const char *path, uint32_t vocab,
                     struct err *e) {
    const json_t *list = json_object_get(root, "added_tokens"), *v;
    char found[JSON_TEXT_BYTES];
    size_t i;
    *ret = vocab;
    if (list && !json_is_array(list))
        return err_set(e, ST_CORRUPT, "file '%s': added_tokens: wanted a list, found %s", path,
                       json_text(found, list));
    json_array_foreach(list, i, v) {
        const json_t *id = json_object_get(v, "id");
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return err_set(e, ST_CORRUPT, "file '%s': added_tokens[%zu].id: wanted an id, found %s",
                           path, i, json_text(found, id));
        if (json_integer_value(id) >= DRAFT_VOCAB_COMMON && json_integer_value(id) < *ret)
            *ret = (uint32_t)json_integer_value(id);
    }
    return ST_OK;
}

// *ret: vocab without such a file.
static int read_tail(uint32_t *ret, const char *model_dir, uint32_t vocab, struct err *e) {
    struct strbuf path = {0}, text = {0};
    struct err missing = {0};
    char found[JSON_TEXT_BYTES];
    json_error_t je;
    strbuf_printf(&path, "%s/tokenizer.json", model_dir);
    int st = small_file_read(&text, strbuf_str(&path), DRAFT_VOCAB_FILE_BYTES_MAX, &missing);
    json_t *root = st ? NULL : json_loadb(text.p, text.len, 0, &je);
    if (st == ST_NOT_FOUND) {
        st = ST_OK;
        *ret = 0;
    } else if (st) {
        *e = missing;
    } else if (!root) {
        st = err_set(e, ST_CORRUPT, "file '%s': wanted JSON, found at line %d: %s",
                     strbuf_str(&path), je.line, json_text_clean(found, je.text));
    } else {
        st = find_tail(ret, root, strbuf_str(&path), vocab, e);
    }
    json_decref(root);
    strbuf_fini(&path);
    strbuf_fini(&text);
    return st;
}

static int common_and_added(struct draft_vocab *ret, const char *model_dir, uint32_t vocab,
                            struct err *e) {
    uint32_t tail = 0;
    if (vocab <= DRAFT_VOCAB_COMMON) return ST_OK;
    int st = read_tail(&tail, model_dir, vocab, e);
    if (st || tail <= DRAFT_VOCAB_COMMON) return st;
    ret->spans[ret->count++] = (struct engine_range){0, DRAFT_VOCAB_COMMON};
    if (tail < vocab) ret->spans[ret->count++] = (struct engine_range){tail, vocab - tail};
    return ST_OK;
}

int draft_vocab_make(struct draft_vocab *ret, const char *setting, const char *model_dir,
                     uint32_t vocab, struct err *e) {
    struct draft_vocab v = {0};
    int st = ST_OK;
    v.given = setting && strcmp(setting, "auto") != 0;
    if (!v.given)
        st = common_and_added(&v, model_dir, vocab, e);
    else if (!strcmp(setting, "all"))
        v.spans[v.count++] = (struct engine_range){0, vocab};
    else
        st = parse(&v, setting, vocab, e);
    if (!st) *ret = v;
    return st;
}
