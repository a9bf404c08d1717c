/* cmd_logits: the forward alone: one JSON array of ids on stdin, float32 logits [positions, vocabulary] as .npy. */
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "proto/exit_code.h"
#include "worker/cmd.h"
#include "worker/engine/engine.h"
#include "worker/npy.h"
#include "worker/options.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { LOGITS_BYTES_MAX = 256 << 20 }; // held at once; longer outputs go out in pieces

static int read_ids(uint32_t **ret, uint32_t *ret_count, struct err *e) {
    json_error_t why;
    json_t *list = json_loadf(stdin, 0, &why);
    if (!list)
        return err_set(e, ST_INVAL, "stdin: wanted a JSON array of ids, line %d: %s", why.line,
                       why.text);
    size_t count = json_is_array(list) ? json_array_size(list) : 0;
    uint32_t *ids = mem_alloc(count * sizeof *ids);
    int st = ST_OK;
    if (count == 0 || count > UINT32_MAX)
        st = err_set(e, ST_INVAL, "stdin: wanted a JSON array of at least one id");
    for (size_t i = 0; i < count && !st; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id > UINT32_MAX)
            st = err_set(e, ST_INVAL, "stdin: element %zu: wanted an id, 0 or more", i);
        else
            ids[i] = (uint32_t)id;
    }
    json_decref(list);
    if (st)
        free(ids);
    else
        *ret = ids, *ret_count = (uint32_t)count;
    return st;
}

struct job {
    struct engine *eng;
    const uint32_t *ids;
    uint32_t count, chunk;
    struct npy *out;
};

// The logits of rows first .. first+count-1. The engine feeds the ids from the first one each time.
static int write_rows(const struct job *j, uint32_t first, uint32_t count, uint32_t *rows,
                      float *logits, struct err *e) {
    uint32_t vocab = engine_info(j->eng)->vocab_size;
    for (uint32_t i = 0; i < count; i++) rows[i] = first + i;
    int st = engine_logits(j->eng, j->ids, first + count, j->chunk, rows, count, logits, e);
    for (uint32_t i = 0; i < count && !st; i++)
        st = npy_add_row(j->out, logits + (size_t)i * vocab, e);
    return st;
}

static int write_all(const struct job *j, struct err *e) {
    uint32_t vocab = engine_info(j->eng)->vocab_size;
    uint32_t piece = max_u32(LOGITS_BYTES_MAX / (vocab * (uint32_t)sizeof(float)), 1);
    piece = min_u32(piece, j->count);
    float *logits = mem_alloc((size_t)piece * vocab * sizeof *logits);
    uint32_t *rows = mem_alloc(piece * sizeof *rows);
    int st = ST_OK;
    for (uint32_t first = 0; first < j->count && !st; first += piece)
        st = write_rows(j, first, min_u32(piece, j->count - first), rows, logits, e);
    free(logits);
    free(rows);
    return st;
}

static int run(const struct options *o, struct err *e) {
    struct job j = {.chunk = (uint32_t)o->chunk};
    struct engine_config c;
    uint32_t *ids = NULL;
    if (!o->out[0]) return err_set(e, ST_INVAL, "wanted --out=FILE.npy");
    options_engine(o, &c);
    c.streams_max = 1;
    c.drafter = NULL; // nothing is drawn
    int st = read_ids(&ids, &j.count, e);
    if (!st && c.context_max == 0) c.context_max = max_u32(j.count, 2);
    if (!st) st = engine_new(&j.eng, &c, e);
    j.ids = ids;
    if (!st) st = npy_create(&j.out, o->out, j.count, engine_info(j.eng)->vocab_size, e);
    if (!st) {
        st = write_all(&j, e);
        if (st)
            npy_free(j.out);
        else
            st = npy_close(j.out, e);
    }
    engine_free(j.eng);
    free(ids);
    return st;
}

int cmd_logits(const struct options *o) {
    struct err e = {0};
    int st = run(o, &e);
    if (!st) return EXIT_CODE_OK;
    cmd_complain("logits", e.msg);
    return st == ST_INVAL    ? EXIT_CODE_USAGE
           : st == ST_NOMEM  ? EXIT_CODE_MEMORY
           : st == ST_DEVICE ? EXIT_CODE_DEVICE
                             : EXIT_CODE_MODEL;
}
