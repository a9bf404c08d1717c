/* costs: see costs.h. */
#include "worker/engine/costs.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/strbuf.h"
#include "worker/engine/costs_tables.h"
#include "worker/engine/json_text.h"
#include "worker/engine/small_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1 };

static const char *const kinds[ENGINE_DRAFT_KINDS] = {
    [ENGINE_DRAFT_COPY] = "copy",     [ENGINE_DRAFT_MTP] = "mtp",
    [ENGINE_DRAFT_DFLASH] = "dflash", [ENGINE_DRAFT_DFLASH2] = "dflash2",
    [ENGINE_DRAFT_TREE] = "tree",
};

const char *costs_kind(enum engine_draft kind) {
    return kinds[kind];
}

void costs_shape(char ret[COSTS_SHAPE_BYTES], const struct engine_info *info) {
    snprintf(ret, COSTS_SHAPE_BYTES, "%s %ux%ux%u %s", info->model_type, info->layers, info->hidden,
             info->vocab_size, info->packed ? "packed" : "plain");
}

// In rounds of one row: rows, a step of a chain, a block, as measured for the demo and its drafters on a CPU, and a little more for what
// drafts cost besides: kept rows pass the recurrence again, each row is drawn from (docs/notes/drafting.md).
void costs_builtin(struct costs *ret) {
    const double row = 0.16, step = 0.13, block = 0.15, block_row = 0.04;
    *ret = (struct costs){0};
    for (uint32_t r = 1; r <= ENGINE_WINDOW_ROWS_MAX; r++) ret->rows_ms[r] = 1 + row * (r - 1);
    for (uint32_t n = 1; n < ENGINE_WINDOW_ROWS_MAX; n++) {
        ret->draft_ms[ENGINE_DRAFT_MTP][n] = step * n;
        for (uint32_t k = ENGINE_DRAFT_DFLASH; k < ENGINE_DRAFT_KINDS; k++)
            ret->draft_ms[k][n] = block + block_row * n;
    }
}

struct reading {
    const char *path;
    const json_t *root;
    struct err *e;
};

static int wrong(const struct reading *r, const char *key, const char *wanted, const json_t *v) {
    char text[JSON_TEXT_BYTES];
    return err_set(r->e, ST_CORRUPT, "costs '%s': %s: wanted %s, found %s", r->path, key, wanted,
                   json_text(text, v));
}

static int check_name(const struct reading *r, const char *key, const char *wanted) {
    const json_t *v = json_object_get(r->root, key);
    char text[JSON_TEXT_BYTES];
    if (!json_is_string(v)) return wrong(r, key, "a text", v);
    if (!wanted || !strcmp(json_string_value(v), wanted)) return ST_OK;
    return err_set(r->e, ST_INVAL, "costs '%s': %s: wanted \"%s\", found %s", r->path, key, wanted,
                   json_text(text, v));
}

// Numbers above 0 that never fall, to ret[1] ..; what lies beyond the list is as its last.
static int take_list(const struct reading *r, const char *key, const json_t *v, uint32_t least,
                     double *ret, uint32_t ret_count) {
    size_t n = json_array_size(v);
    char wanted[80];
    snprintf(wanted, sizeof wanted, "a list of %u numbers or more", least);
    if (!json_is_array(v) || n < least) return wrong(r, key, wanted, v);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        double ms = json_number_value(x),
               before = i ? json_number_value(json_array_get(v, i - 1)) : 0;
        if (!json_is_number(x) || !(ms > 0 && ms < 1e9) || ms < before)
            return wrong(r, key, "numbers above 0 that never fall", x);
    }
    for (uint32_t i = 1; i < ret_count; i++)
        ret[i] = json_number_value(json_array_get(v, min_size(i, n) - 1));
    return ST_OK;
}

static int take_drafts(const struct reading *r, struct costs *ret) {
    const json_t *all = json_object_get(r->root, "draft_ms"), *v;
    const char *name;
    if (!all) return ST_OK;
    if (!json_is_object(all)) return wrong(r, "draft_ms", "an object", all);
    json_object_foreach((json_t *)all, name, v) {
        uint32_t k = 0;
        char key[JSON_TEXT_BYTES];
        while (k < ENGINE_DRAFT_KINDS && strcmp(kinds[k], name)) k++;
        if (k == ENGINE_DRAFT_KINDS)
            return err_set(r->e, ST_CORRUPT,
                           "costs '%s': draft_ms: wanted copy, mtp, dflash, dflash2 or tree, "
                           "found \"%s\"",
                           r->path, json_text_clean(key, name));
        int st = take_list(r, name, v, 1, ret->draft_ms[k], ENGINE_WINDOW_ROWS_MAX);
        if (st) return st;
    }
    return ST_OK;
}

static int check_keys(const struct reading *r) {
    static const char *const known[] = {"railyard_costs", "device",   "shape",
                                        "rows_ms",        "draft_ms", "about"};
    const char *name;
    const json_t *v;
    char key[JSON_TEXT_BYTES];
    if (!json_is_object(r->root)) return wrong(r, "the file", "an object", r->root);
    json_object_foreach((json_t *)r->root, name, v) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) found |= !strcmp(known[i], name);
        if (!found)
            return err_set(r->e, ST_CORRUPT, "costs '%s': unknown key \"%s\"", r->path,
                           json_text_clean(key, name));
    }
    v = json_object_get(r->root, "railyard_costs");
    if (json_integer_value(v) != VERSION) return wrong(r, "railyard_costs", "1", v);
    v = json_object_get(r->root, "about");
    if (v && !json_is_string(v)) return wrong(r, "about", "a text", v);
    return ST_OK;
}

static int take(struct costs *ret, const struct reading *r, const char *device, const char *shape,
                uint32_t rows) {
    struct costs c;
    costs_builtin(&c);
    int st = check_keys(r);
    if (!st) st = check_name(r, "device", device);
    if (!st) st = check_name(r, "shape", shape);
    if (!st)
        st = take_list(r, "rows_ms", json_object_get(r->root, "rows_ms"), rows, c.rows_ms,
                       ENGINE_WINDOW_ROWS_MAX + 1);
    if (st) return st;
    for (uint32_t k = 0; k < ENGINE_DRAFT_KINDS; k++)
        for (uint32_t n = 0; n < ENGINE_WINDOW_ROWS_MAX; n++) c.draft_ms[k][n] *= c.rows_ms[1];
    st = take_drafts(r, &c);
    if (!st) *ret = c;
    return st;
}

static bool is_for(const json_t *root, const char *device, const char *shape) {
    const char *d = json_string_value(json_object_get(root, "device"));
    const char *s = json_string_value(json_object_get(root, "shape"));
    return d && s && !strcmp(d, device) && !strcmp(s, shape);
}

const char *costs_find(struct costs *ret, const char *device, const char *shape, uint32_t rows) {
    for (const struct costs_table *t = costs_tables; t->name; t++) {
        struct err e = {0};
        json_t *root = json_loads(t->text, JSON_REJECT_DUPLICATES, NULL);
        bool hit = is_for(root, device, shape);
        if (hit) hit = !take(ret, &(struct reading){t->name, root, &e}, device, shape, rows);
        json_decref(root);
        if (hit) return t->name;
    }
    return NULL;
}

int costs_read(struct costs *ret, const char *path, const char *device, const char *shape,
               uint32_t rows, struct err *e) {
    struct strbuf text = {0};
    char found[JSON_TEXT_BYTES];
    json_error_t je;
    int st = small_file_read(&text, path, COSTS_FILE_BYTES_MAX, e);
    if (st) {
        strbuf_fini(&text);
        return (int)err_prefix(e, "costs");
    }
    json_t *root = json_loadb(text.p, text.len, JSON_REJECT_DUPLICATES, &je);
    if (root)
        st = take(ret, &(struct reading){path, root, e}, device, shape, rows);
    else
        st = err_set(e, ST_CORRUPT, "costs '%s': line %d: %s", path, je.line,
                     json_text_clean(found, je.text));
    json_decref(root);
    strbuf_fini(&text);
    return st;
}

static void print_list(FILE *f, const double *v, uint32_t count) {
    for (uint32_t i = 1; i <= count; i++) fprintf(f, "%s%.4f", i > 1 ? ", " : "[", v[i]);
    fprintf(f, "]");
}

int costs_write(const struct costs *c, const char *path, const char *device, const char *shape,
                uint32_t rows, struct err *e) {
    FILE *f = fopen(path, "we");
    const char *comma = "";
    if (!f) return err_errno(e, "open costs '%s'", path);
    fprintf(f,
            "{\"railyard_costs\": %d,\n \"device\": \"%s\",\n \"shape\": \"%s\",\n \"rows_ms\": ",
            VERSION, device, shape);
    print_list(f, c->rows_ms, rows);
    fprintf(f, ",\n \"draft_ms\": {");
    for (uint32_t k = 0; k < ENGINE_DRAFT_KINDS; k++) {
        uint32_t n = 0;
        while (n + 1 < rows && c->draft_ms[k][n + 1] > 0) n++;
        if (!n) continue;
        fprintf(f, "%s\"%s\": ", comma, kinds[k]);
        print_list(f, c->draft_ms[k], n);
        comma = ", ";
    }
    fprintf(f, "}}\n");
    int bad = ferror(f);
    if (fclose(f) || bad) return err_errno(e, "write costs '%s'", path);
    return ST_OK;
}

double costs_round(const struct costs *c, enum engine_draft kind, uint32_t drafts) {
    return c->rows_ms[drafts + 1] + c->draft_ms[kind][drafts];
}

double costs_branch(const struct costs *c, enum engine_draft kind, uint32_t drafts,
                    uint32_t copied) {
    uint32_t rows = drafts + 1 + (copied ? copied + 1 : 0);
    return c->rows_ms[min_u32(rows, ENGINE_WINDOW_ROWS_MAX)] + c->draft_ms[kind][drafts];
}
