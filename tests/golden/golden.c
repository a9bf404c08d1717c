/* golden: see golden.h. */
#include "tests/golden/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/mem.h"
#include "tests/lib/backend_env.h"
#include "tests/lib/test.h"
#include "worker/engine/engine.h"

void *golden_read_file(const char *path, size_t *ret_len) {
    FILE *f = fopen(path, "rb");
    if (!f) test_fail(__FILE__, __LINE__, "cannot open %s", path);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    char *p = mem_alloc(n + 1);
    size_t got = fread(p, 1, n, f);
    fclose(f);
    CHECK_EQ(got, n);
    p[n] = '\0';
    *ret_len = n;
    return p;
}

json_t *golden_read_json(const char *path) {
    json_error_t je;
    json_t *v = json_load_file(path, JSON_REJECT_DUPLICATES, &je);
    if (!v) test_fail(__FILE__, __LINE__, "%s: %s", path, je.text);
    return v;
}

uint32_t *golden_ids(const json_t *list, uint32_t *ret_count) {
    size_t n = json_array_size(list);
    uint32_t *ids = mem_calloc(n, sizeof *ids);
    for (size_t i = 0; i < n; i++) ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    *ret_count = (uint32_t)n;
    return ids;
}

// The number behind a key of the header, which is the text of a Python dict.
static const char *npy_value(const char *header, const char *key) {
    const char *p = strstr(header, key);
    if (!p) test_fail(__FILE__, __LINE__, "npy header without %s: %s", key, header);
    return p + strlen(key);
}

void golden_read_npy(struct golden_array *ret, const char *path) {
    size_t len;
    unsigned char *p = golden_read_file(path, &len);
    if (len < 10 || memcmp(p, "\x93NUMPY\x01", 7) != 0)
        test_fail(__FILE__, __LINE__, "%s: wanted a version 1 npy file", path);
    size_t header_bytes = p[8] | (size_t)p[9] << 8;
    CHECK(10 + header_bytes <= len);
    char *header = mem_strndup((const char *)p + 10, header_bytes);
    const char *type = npy_value(header, "'descr': '<");
    CHECK(strncmp(type, "f4'", 3) == 0 || strncmp(type, "i4'", 3) == 0);
    CHECK(strstr(header, "'fortran_order': False") != NULL);
    unsigned long long rows = 0, columns = 1;
    int n = sscanf(npy_value(header, "'shape': ("), "%llu, %llu", &rows, &columns);
    CHECK(n == 1 || n == 2);
    CHECK_EQ(len - 10 - header_bytes, rows * columns * 4);
    *ret = (struct golden_array){p, p + 10 + header_bytes, type[0], rows, columns};
    free(header);
}

struct engine *golden_engine(const char *model_dir) {
    struct engine *eng = NULL;
    struct err e = {0};
    struct engine_config config = {.model_dir = model_dir,
                                   .backend = "cpu",
                                   .context_max = 1024,
                                   .streams_max = 2,
                                   .threads = 2,
                                   .kv = "f32"};
    backend_env(&config);
    CHECK_OK(engine_new(&eng, &config, &e), e);
    struct engine_range all = {0, engine_info(eng)->vocab_size};
    CHECK_OK(engine_set_vocab(eng, &all, 1, NULL, 0, &e), e);
    return eng;
}

double golden_worst(struct engine *eng, const struct golden_case *c, uint32_t chunk) {
    struct err e = {0};
    size_t n = (size_t)c->rows_count * engine_info(eng)->vocab_size;
    float *got = mem_calloc(n, sizeof *got);
    int st = engine_logits(eng, c->ids, c->ids_count, chunk, c->rows, c->rows_count, got, &e);
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - c->want[i]) / c->range;
        if (!(d <= worst)) worst = d; // NaN too
    }
    free(got);
    CHECK_OK(st, e);
    return worst;
}

void golden_greedy(struct engine *eng, const struct golden_case *c, uint32_t count, uint32_t *ret) {
    struct err e = {0};
    struct engine_request r = {.prompt = c->ids,
                               .prompt_count = c->ids_count,
                               .sampling = {.top_p = 1, .repetition = 1},
                               .max_tokens = count,
                               .ignore_eos = true,
                               .top_logprobs = -1};
    uint64_t handle;
    CHECK_OK(engine_submit(eng, &r, &handle, &e), e);
    uint32_t have = 0;
    for (bool done = false; !done;) {
        struct engine_round round;
        CHECK_OK(engine_step(eng, &round, &e), e);
        for (uint32_t i = 0; i < round.count; i++) {
            const struct engine_event *v = &round.events[i];
            CHECK(have + v->ids_count <= count);
            memcpy(ret + have, v->ids, v->ids_count * sizeof *ret);
            have += v->ids_count;
            done |= v->finish != ENGINE_RUNNING;
        }
        CHECK(done || round.rows > 0); // nothing done and nothing to do: it would run for ever
    }
    CHECK_EQ(have, count);
}
