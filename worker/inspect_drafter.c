/* inspect_drafter: see inspect_drafter.h. */
#include "worker/inspect_drafter.h"
#include "common/err.h"
#include "common/strbuf.h"
#include "proto/exit_code.h"
#include "worker/engine/dflash_config.h"
#include "worker/engine/dflash_weights.h"
#include "worker/engine/model_config.h"
#include "worker/engine/safetensors.h"
#include "worker/engine/small_file.h"
#include "worker/options.h"

#include <stdio.h>

static int read_config(const char *dir, struct strbuf *path, struct strbuf *text, struct err *e) {
    strbuf_printf(path, "%s/config.json", dir);
    return small_file_read(text, strbuf_str(path), MODEL_CONFIG_FILE_BYTES_MAX, e);
}

bool inspect_is_drafter(const char *dir) {
    struct strbuf path = {0}, text = {0};
    struct err e = {0};
    bool is = !read_config(dir, &path, &text, &e) && dflash_config_is(text.p, text.len);
    strbuf_fini(&path);
    strbuf_fini(&text);
    return is;
}

static void print_layers(const struct dflash_config *c) {
    uint32_t slide = 0;
    for (uint32_t i = 0; i < c->layers; i++) slide += c->sliding[i];
    printf("layers      %u: %u full attention, %u sliding", c->layers, c->layers - slide, slide);
    if (slide) printf(" over %u rows", c->window);
    printf("\nattention   %u heads, %u of keys and values, %u wide; mlp %u\n", c->heads,
           c->kv_heads, c->head_dim, c->intermediate);
}

static void print_spans(const struct dflash_config *c) {
    printf("vocabulary ");
    if (!c->spans_count) printf(" as --draft-vocab says");
    for (uint32_t i = 0; i < c->spans_count; i++)
        printf("%s %u-%u", i ? "," : "", c->spans[i].first,
               c->spans[i].first + c->spans[i].count - 1);
    printf("; mask %u\n", c->mask_id);
}

static void print_config(const struct dflash_config *c) {
    printf("family      %s, a drafter for a model of %u layers, hidden %u, vocabulary %u rows\n",
           c->v2 ? "dflash2" : "dflash", c->target_layers, c->hidden, c->vocab);
    print_layers(c);
    printf("block       %u rows, %u ids\n", c->block, dflash_config_ids_max(c));
    printf("taps        behind the model's layers");
    for (uint32_t i = 0; i < c->taps_count; i++) printf("%s %u", i ? "," : "", c->taps[i]);
    printf("\n");
    print_spans(c);
}

static void print_tensors(const struct safetensors *file) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < safetensors_count(file); i++) bytes += safetensors_at(file, i)->bytes;
    printf("tensors     %u, %.1f MiB\n", safetensors_count(file), (double)bytes / (1 << 20));
}

static int open_weights(const struct options *o, const struct dflash_config *c, struct err *e) {
    static struct dflash_weights w;
    dflash_weights_init(&w, c, NULL, 0);
    int st = dflash_weights_open(&w, o->model, e);
    if (w.file && !o->check) print_tensors(w.file);
    dflash_weights_close(&w);
    return st;
}

int inspect_drafter(const struct options *o) {
    static struct dflash_config c;
    struct strbuf path = {0}, text = {0};
    struct err e = {0};
    int st = read_config(o->model, &path, &text, &e);
    if (!st) st = dflash_config_parse(&c, strbuf_str(&path), text.p, text.len, NULL, &e);
    if (!st && !o->check) print_config(&c);
    if (!st) st = open_weights(o, &c, &e);
    if (st)
        printf("%s%s\n", o->check ? "" : "wrong       ", e.msg);
    else if (!o->check)
        printf("right       every tensor of its config is there, in shape; for --drafter\n");
    strbuf_fini(&path);
    strbuf_fini(&text);
    return st ? EXIT_CODE_MODEL : EXIT_CODE_OK;
}
