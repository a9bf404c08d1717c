/* dflash_tiny: see dflash_tiny.h. */
#include "tests/lib/dflash_tiny.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/mem.h"
#include "common/num.h"
#include "common/strbuf.h"
#include "tests/lib/test.h"

float tiny_fill(uint32_t t, uint64_t i, float s, float b) {
    uint64_t x = mix_u64(((uint64_t)t << 32) + i + 1);
    return (float)(((double)(x >> 40) / 16777216.0 - 0.5) * 2 * (double)s + (double)b);
}

void tiny_fill_all(float *ret, uint32_t t, uint64_t count, float s, float b) {
    for (uint64_t i = 0; i < count; i++) ret[i] = tiny_fill(t, i, s, b);
}

void tiny_files_add(struct tiny_files *f, const char *name, uint32_t dims_count,
                    const uint32_t *dims, uint32_t t, float s, float b) {
    struct tiny_tensor *x = &f->tensors[f->count++];
    uint64_t n = 1;
    CHECK(f->count <= TINY_TENSORS_MAX);
    snprintf(x->name, sizeof x->name, "%s", name);
    x->dims_count = dims_count;
    for (uint32_t i = 0; i < dims_count; i++) n *= x->dims[i] = dims[i];
    x->data = mem_alloc(n * sizeof *x->data);
    tiny_fill_all(x->data, t, n, s, b);
}

static void add_matrix(struct tiny_files *f, const char *name, uint32_t rows, uint32_t cols,
                       uint32_t t, float s) {
    tiny_files_add(f, name, 2, (uint32_t[]){rows, cols}, t, s, 0);
}

static void add_norm(struct tiny_files *f, const char *name, uint32_t n, uint32_t t) {
    tiny_files_add(f, name, 1, &n, t, 0.1f, 1);
}

static void add_conv(struct tiny_files *f, const char *layer, const char *name, uint32_t t) {
    char key[96];
    snprintf(key, sizeof key, "%s%s.base_kernel", layer, name);
    tiny_files_add(f, key, 3, (uint32_t[]){2, 2, TINY_D}, t, 0.3f, 0);
    float *base = f->tensors[f->count - 1].data;
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t c = 0; c < TINY_D; c++) base[side * 2 * TINY_D + c] += 1;
    snprintf(key, sizeof key, "%s%s.kernel_projection.weight", layer, name);
    add_matrix(f, key, 2 * 2 * (TINY_D / 8), TINY_D, t + 1, 0.05f);
}

static void add_layer(struct tiny_files *f, uint32_t i, bool v2) {
    char layer[32], key[96];
    uint32_t t = 15 * i, q = TINY_HEADS * TINY_HEAD_DIM, kv = TINY_KV * TINY_HEAD_DIM;
    const struct {
        const char *name;
        uint32_t rows, cols; // cols 0: a norm
    } parts[] = {{"input_layernorm", TINY_D, 0},    {"post_attention_layernorm", TINY_D, 0},
                 {"self_attn.q_proj", q, TINY_D},   {"self_attn.k_proj", kv, TINY_D},
                 {"self_attn.v_proj", kv, TINY_D},  {"self_attn.o_proj", TINY_D, q},
                 {"self_attn.q_norm", 8, 0},        {"self_attn.k_norm", 8, 0},
                 {"mlp.gate_proj", TINY_I, TINY_D}, {"mlp.up_proj", TINY_I, TINY_D},
                 {"mlp.down_proj", TINY_D, TINY_I}};
    snprintf(layer, sizeof layer, "layers.%u.", i);
    for (uint32_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        snprintf(key, sizeof key, "%s%s.weight", layer, parts[p].name);
        if (parts[p].cols)
            add_matrix(f, key, parts[p].rows, parts[p].cols, t + 6 + p, 0.3f);
        else
            add_norm(f, key, parts[p].rows, t + 6 + p);
    }
    if (!v2) return;
    add_conv(f, layer, "attention_conv", t + 17);
    add_conv(f, layer, "mlp_conv", t + 19);
}

void tiny_files_make(struct tiny_files *f, bool v2, const char *layer_types, const char *extra) {
    *f = (struct tiny_files){0};
    add_matrix(f, "fc.weight", TINY_D, TINY_TAPS * TINY_D, 3, 0.2f);
    add_norm(f, "hidden_norm.weight", TINY_D, 4);
    add_norm(f, "norm.weight", TINY_D, 5);
    for (uint32_t i = 0; i < TINY_LAYERS; i++) add_layer(f, i, v2);
    if (v2) {
        add_matrix(f, "candidate_selector.hidden_projection.weight", TINY_RANK, TINY_D, 36, 1.5f);
        add_matrix(f, "candidate_selector.predecessor_codebook", TINY_VOCAB, TINY_RANK, 37, 1);
        add_matrix(f, "candidate_selector.successor_codebook", TINY_VOCAB, TINY_RANK, 38, 1);
    }
    snprintf(f->config, sizeof f->config,
             "{\"architectures\": [\"%s\"], \"model_type\": \"qwen3\", \"dtype\": \"float32\", %s"
             "\"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2, "
             "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "
             "\"vocab_size\": 64, \"num_target_layers\": 4, \"rms_norm_eps\": 1e-06, "
             "\"rope_theta\": 10000, \"layer_types\": [%s], \"sliding_window\": 6, "
             "\"dflash_config\": {\"block_size\": 4, \"mask_token_id\": 63, "
             "\"target_layer_ids\": [0, 1]%s}}",
             v2 ? "DFlash2DraftModel" : "DFlashDraftModel", extra, layer_types,
             v2 ? ", \"conv_kernel_size\": 2, \"conv_group_size\": 8, \"selector_rank\": 4, "
                  "\"selector_top_k\": 4"
                : "");
}

struct tiny_tensor *tiny_files_find(struct tiny_files *f, const char *name) {
    for (uint32_t i = 0; i < f->count; i++)
        if (!strcmp(f->tensors[i].name, name)) return &f->tensors[i];
    test_fail(__FILE__, __LINE__, "no tensor %s", name);
}

void tiny_files_drop(struct tiny_files *f, const char *name) {
    struct tiny_tensor *x = tiny_files_find(f, name);
    free(x->data);
    *x = f->tensors[--f->count];
}

static void write_file(const char *dir, const char *name, const void *p, size_t bytes) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *out = fopen(path, "wb");
    CHECK(out && fwrite(p, 1, bytes, out) == bytes && !fclose(out));
}

void tiny_files_write(const struct tiny_files *f, char *ret_dir, uint32_t ret_bytes) {
    static int folders;
    struct strbuf head = {0}, all = {0};
    uint64_t at = 0;
    snprintf(ret_dir, ret_bytes, "%s/drafter%d", test_temp_dir(), folders++);
    CHECK_EQ(mkdir(ret_dir, 0777), 0);
    for (uint32_t i = 0; i < f->count; i++) {
        const struct tiny_tensor *t = &f->tensors[i];
        uint64_t n = sizeof *t->data;
        strbuf_printf(&head, "%s\"%s\": {\"dtype\": \"F32\", \"shape\": [", i ? ", " : "{",
                      t->name);
        for (uint32_t d = 0; d < t->dims_count; d++) {
            strbuf_printf(&head, "%s%u", d ? ", " : "", t->dims[d]);
            n *= t->dims[d];
        }
        strbuf_printf(&head, "], \"data_offsets\": [%llu, %llu]}", (unsigned long long)at,
                      (unsigned long long)(at + n));
        at += n;
    }
    strbuf_add_str(&head, "}");
    while (head.len % 8) strbuf_add_char(&head, ' ');
    uint64_t bytes = head.len;
    strbuf_add(&all, &bytes, sizeof bytes);
    strbuf_add(&all, head.p, head.len);
    for (uint32_t i = 0; i < f->count; i++) {
        const struct tiny_tensor *t = &f->tensors[i];
        uint64_t n = sizeof *t->data;
        for (uint32_t d = 0; d < t->dims_count; d++) n *= t->dims[d];
        strbuf_add(&all, t->data, n);
    }
    write_file(ret_dir, "model.safetensors", all.p, all.len);
    write_file(ret_dir, "config.json", f->config, strlen(f->config));
    strbuf_fini(&head);
    strbuf_fini(&all);
}

void tiny_files_fini(struct tiny_files *f) {
    for (uint32_t i = 0; i < f->count; i++) free(f->tensors[i].data);
}
