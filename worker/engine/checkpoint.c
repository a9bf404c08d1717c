/* checkpoint: see checkpoint.h. Owns the files' mappings and one table of all their tensors. */
#include "worker/engine/checkpoint.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/sha256.h"
#include "common/strbuf.h"
#include "worker/engine/dflash_config.h"
#include "worker/engine/json_text.h"
#include "worker/engine/small_file.h"

enum { PAGE_BYTES = 4096 };

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";
static const char *const text_prefixes[] = {"model.language_model.", "language_model.model.",
                                            "model."};
static const char *const head_keys[] = {"lm_head", "language_model.lm_head"};
static const char *const head_ends[] = {"trellis", "weight"};
static const char *const vision_prefixes[] = {"model.visual.", "visual."};

struct checkpoint {
    char *dir;
    struct strbuf config_text; // config.json as read, for the digest
    struct model_config config;
    struct safetensors **files; // by name
    uint32_t files_count;
    const struct safetensors_tensor **tensors; // all files', by name
    uint32_t tensors_count;
    const struct safetensors_tensor *head; // NULL when tied
    char *head_key; // of the linear that it belongs to, the embedding when tied
    struct checkpoint_info info;
};

static char *join(const char *dir, const char *name) {
    struct strbuf b = {0};
    strbuf_printf(&b, "%s/%s", dir, name);
    return strbuf_take(&b);
}

static char *join_key(const char *prefix, const char *name) {
    struct strbuf b = {0};
    strbuf_printf(&b, "%s%s", prefix, name);
    return strbuf_take(&b);
}

static int open_file(struct checkpoint *c, const char *name, struct err *e) {
    char *path = join(c->dir, name);
    int st = safetensors_open(&c->files[c->files_count], path, e);
    if (!st) c->files_count++;
    free(path);
    return st;
}

// A shard's name comes from the index: it must stay inside the folder.
static bool plain_name(const char *s) {
    size_t n = strlen(s);
    static const char end[] = ".safetensors";
    return n > strlen(end) && n < 256 && s[0] != '.' && !strchr(s, '/') && !strchr(s, '\\') &&
           strcmp(s + n - strlen(end), end) == 0;
}

static int by_string(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// The shard names of a weight_map, sorted, each once. names points into map.
static int shard_names(const char *path, const json_t *map, const char ***ret_names,
                       size_t *ret_count, struct err *e) {
    char clean[JSON_TEXT_BYTES], found[JSON_TEXT_BYTES];
    if (!json_is_object(map) || json_object_size(map) == 0)
        return err_set(e, ST_CORRUPT,
                       "file '%s': weight_map: wanted an object of tensor names, found %s", path,
                       json_object_size(map) ? ""
                       : json_is_object(map) ? "none"
                                             : json_text_kind(map));
    const char **names = mem_calloc(json_object_size(map), sizeof *names), *tensor;
    size_t n = 0, kept = 0;
    json_t *v;
    json_object_foreach((json_t *)map, tensor, v) {
        names[n++] = json_is_string(v) ? json_string_value(v) : "";
        if (plain_name(names[n - 1])) continue;
        free(names);
        return err_set(e, ST_CORRUPT,
                       "file '%s': weight_map: tensor '%s': wanted a *.safetensors file of this "
                       "folder, found %s",
                       path, json_text_clean(clean, tensor), json_text(found, v));
    }
    qsort(names, n, sizeof *names, by_string);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || strcmp(names[kept - 1], names[i]) != 0) names[kept++] = names[i];
    *ret_names = names;
    *ret_count = kept;
    return ST_OK;
}

static int by_name(const void *a, const void *b) {
    const struct safetensors_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

// One table over all files. A name in two files has no right answer.
static int join_tables(struct checkpoint *c, struct err *e) {
    size_t n = 0;
    for (uint32_t f = 0; f < c->files_count; f++) n += safetensors_count(c->files[f]);
    c->tensors = mem_calloc(n, sizeof(void *));
    for (uint32_t f = 0; f < c->files_count; f++)
        for (uint32_t i = 0; i < safetensors_count(c->files[f]); i++)
            c->tensors[c->tensors_count++] = safetensors_at(c->files[f], i);
    qsort(c->tensors, n, sizeof(void *), by_name);
    for (uint32_t i = 1; i < c->tensors_count; i++)
        if (strcmp(c->tensors[i - 1]->name, c->tensors[i]->name) == 0) {
            char clean[JSON_TEXT_BYTES];
            return err_set(e, ST_CORRUPT,
                           "file '%s': tensor '%s': wanted in one shard, found in '%s' too",
                           c->tensors[i - 1]->path, json_text_clean(clean, c->tensors[i]->name),
                           c->tensors[i]->path);
        }
    return ST_OK;
}

static int check_index(const struct checkpoint *c, const char *path, const json_t *map,
                       struct err *e) {
    const char *name;
    char clean[JSON_TEXT_BYTES];
    json_t *v;
    json_object_foreach((json_t *)map, name, v) {
        const struct safetensors_tensor *t = checkpoint_find(c, name);
        const char *at = t ? strrchr(t->path, '/') + 1 : NULL;
        if (at && strcmp(at, json_string_value(v)) == 0) continue;
        return err_set(e, ST_CORRUPT,
                       "file '%s': weight_map: tensor '%s': wanted in '%s', found %s%s", path,
                       json_text_clean(clean, name), json_string_value(v), at ? "in " : "nowhere",
                       at ? at : "");
    }
    return ST_OK;
}

static int open_shards(struct checkpoint *c, const char *path, const json_t *map, struct err *e) {
    const char **names = NULL;
    size_t n = 0;
    int st = shard_names(path, map, &names, &n, e);
    if (st) return st;
    if (n > CHECKPOINT_SHARDS_MAX)
        st = err_set(e, ST_CORRUPT, "file '%s': weight_map: wanted at most %d files, found %zu",
                     path, CHECKPOINT_SHARDS_MAX, n);
    else
        c->files = mem_calloc(n, sizeof(void *));
    for (size_t i = 0; i < n && !st; i++) {
        st = open_file(c, names[i], e);
        if (st == ST_NOT_FOUND) err_prefix(e, "shard of '%s'", index_name);
    }
    free(names);
    if (!st) st = join_tables(c, e);
    if (!st) st = check_index(c, path, map, e);
    return st;
}

static int open_index(struct checkpoint *c, const char *path, struct err *e) {
    struct strbuf text = {0};
    char clean[JSON_TEXT_BYTES];
    json_error_t je;
    json_t *root = NULL;
    int st = small_file_read(&text, path, CHECKPOINT_INDEX_BYTES_MAX, e);
    if (st) goto out;
    root = json_loadb(strbuf_str(&text), text.len, JSON_REJECT_DUPLICATES, &je);
    if (!root) {
        st = err_set(e, ST_CORRUPT, "file '%s': wanted JSON, found at line %d: %s", path, je.line,
                     json_text_clean(clean, je.text));
        goto out;
    }
    st = open_shards(c, path, json_object_get(root, "weight_map"), e);
out:
    json_decref(root);
    strbuf_fini(&text);
    return st;
}

// Neither weights file is there: say what is there instead, if we know it.
static int refuse_weights(const struct checkpoint *c, struct err *e) {
    static const struct {
        const char *end, *name;
    } known[] = {{".gguf", "a GGUF file (known, not in this build)"},
                 {".bin", "PyTorch .bin files (not supported)"},
                 {".pth", "PyTorch .pth files (not supported)"}};
    const char *found = "neither";
    DIR *d = opendir(c->dir);
    for (struct dirent *f; d && (f = readdir(d));)
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
            size_t n = strlen(f->d_name), m = strlen(known[i].end);
            if (n > m && strcmp(f->d_name + n - m, known[i].end) == 0) found = known[i].name;
        }
    if (d) closedir(d);
    return err_set(e, strcmp(found, "neither") ? ST_UNSUPPORTED : ST_NOT_FOUND,
                   "folder '%s': wanted %s or %s, found %s", c->dir, single_name, index_name,
                   found);
}

static int open_weights(struct checkpoint *c, struct err *e) {
    char *single = join(c->dir, single_name), *index = join(c->dir, index_name);
    struct stat sb;
    int st;
    // lstat: a link to nowhere is a broken single file, not a reason to look for an index
    if (lstat(single, &sb) == 0) {
        c->files = mem_calloc(1, sizeof(void *));
        st = open_file(c, single_name, e);
        if (!st) st = join_tables(c, e);
    } else if (lstat(index, &sb) == 0) {
        st = open_index(c, index, e);
    } else {
        st = refuse_weights(c, e);
    }
    free(single);
    free(index);
    return st;
}

static int open_config(struct checkpoint *c, struct err *e) {
    char *path = join(c->dir, "config.json");
    int st = small_file_read(&c->config_text, path, MODEL_CONFIG_FILE_BYTES_MAX, e);
    if (!st)
        st = model_config_parse(&c->config, path, strbuf_str(&c->config_text), c->config_text.len,
                                e);
    if (st && dflash_config_is(strbuf_str(&c->config_text), c->config_text.len))
        err_set(e, ST_CORRUPT,
                "wanted a model, found '%.300s', a drafter, which goes beside one: --drafter",
                c->dir);
    free(path);
    return st;
}

static int find_prefix(struct checkpoint *c, struct err *e) {
    for (size_t i = 0; i < sizeof text_prefixes / sizeof text_prefixes[0]; i++) {
        c->info.text_prefix = text_prefixes[i];
        if (checkpoint_text(c, "embed_tokens.weight")) return ST_OK;
    }
    return err_set(e, ST_CORRUPT,
                   "folder '%s': wanted tensor 'model.language_model.embed_tokens.weight' or "
                   "'model.embed_tokens.weight', found neither",
                   c->dir);
}

static bool has_prefix(const char *s, const char *prefix) {
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

// Whether a tensor is one of a linear's.
static bool is_of(const char *name, const char *key) {
    return has_prefix(name, key) && name[strlen(key)] == '.';
}

static void find_head(struct checkpoint *c) {
    size_t i;
    for (i = 0; i < 4 && !c->head; i++) {
        struct strbuf name = {0};
        strbuf_printf(&name, "%s.%s", head_keys[i / 2], head_ends[i % 2]);
        c->head = checkpoint_find(c, strbuf_str(&name));
        strbuf_fini(&name);
    }
    c->info.tied = !c->head;
    if (c->head)
        c->head_key = mem_strdup(head_keys[(i - 1) / 2]);
    else
        c->head_key = join_key(c->info.text_prefix, "embed_tokens");
}

// What a tensor adds to the parameters of the model: a trellis its weights, what goes with it nothing.
static uint64_t parameters_of(const struct safetensors_tensor *t) {
    static const char *const with[] = {"suh", "svh", "su", "sv", "mcg", "mul1"};
    const char *dot = strrchr(t->name, '.');
    if (!dot) return t->elements;
    if (!strcmp(dot + 1, "trellis") && t->dims_count == 3) return t->dims[0] * t->dims[1] * 256;
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++)
        if (!strcmp(dot + 1, with[i])) return 0;
    return t->elements;
}

static void count_tensor(struct checkpoint_info *info, const struct safetensors_tensor *t,
                         bool head) {
    bool vision = false;
    for (size_t i = 0; i < sizeof vision_prefixes / sizeof vision_prefixes[0]; i++)
        vision |= has_prefix(t->name, vision_prefixes[i]);
    info->total_bytes += t->bytes;
    if (vision) {
        info->vision_tensors++;
    } else if (has_prefix(t->name, CHECKPOINT_MTP_PREFIX)) {
        info->mtp_tensors++;
        info->mtp_bytes += t->bytes;
    } else if (head || has_prefix(t->name, info->text_prefix)) {
        info->text_tensors++;
        info->text_bytes += t->bytes;
        info->text_parameters += parameters_of(t);
        if (strstr(t->name, ".mlp.experts.")) {
            info->routed_bytes += t->bytes;
            info->routed_parameters += parameters_of(t);
        }
    } else {
        info->other_tensors++;
    }
}

static bool has_single(const struct checkpoint *c, uint32_t layer) {
    return checkpoint_text(c, "layers.%u.mlp.experts.0.gate_proj.weight", layer) ||
           checkpoint_text(c, "layers.%u.mlp.experts.0.gate_proj.trellis", layer);
}

static void count_experts(struct checkpoint *c) {
    for (uint32_t i = 0; c->config.moe && i < c->config.layers; i++) {
        bool packed = checkpoint_experts(c, c->info.text_prefix, i) == CHECKPOINT_EXPERTS_PACKED;
        c->info.packed_layers += packed;
        c->info.single_layers += !packed;
        c->info.both_layers += packed && has_single(c, i);
    }
}

static int read_parts(struct checkpoint *c, struct err *e) {
    int st = find_prefix(c, e);
    if (st) return st;
    find_head(c);
    c->info.files = c->files_count;
    for (uint32_t i = 0; i < c->tensors_count; i++)
        count_tensor(&c->info, c->tensors[i], c->head && is_of(c->tensors[i]->name, c->head_key));
    count_experts(c);
    return ST_OK;
}

static int check_dir(const char *dir, struct err *e) {
    struct stat sb;
    if (stat(dir, &sb)) return err_errno(e, "folder '%s'", dir);
    if (S_ISDIR(sb.st_mode)) return ST_OK;
    size_t n = strlen(dir);
    bool gguf = n > 5 && strcmp(dir + n - 5, ".gguf") == 0;
    return err_set(e, ST_UNSUPPORTED, "'%s': wanted a folder with config.json, found a %s", dir,
                   gguf ? "GGUF file (known, not in this build)" : "file");
}

int checkpoint_open(struct checkpoint **ret, const char *dir, struct err *e) {
    int st = check_dir(dir, e);
    if (st) return st;
    struct checkpoint *c = mem_calloc(1, sizeof *c);
    c->dir = mem_strdup(dir);
    st = open_config(c, e);
    if (!st) st = open_weights(c, e);
    if (!st) st = read_parts(c, e);
    if (st)
        checkpoint_close(c);
    else
        *ret = c;
    return st;
}

void checkpoint_close(struct checkpoint *c) {
    if (!c) return;
    for (uint32_t i = 0; i < c->files_count; i++) safetensors_close(c->files[i]);
    free(c->files);
    free(c->tensors);
    free(c->head_key);
    strbuf_fini(&c->config_text);
    free(c->dir);
    free(c);
}

const struct model_config *checkpoint_config(const struct checkpoint *c) {
    return &c->config;
}

const struct checkpoint_info *checkpoint_info(const struct checkpoint *c) {
    return &c->info;
}

const struct safetensors_tensor *checkpoint_find(const struct checkpoint *c, const char *name) {
    struct safetensors_tensor t = {.name = name};
    const struct safetensors_tensor *key = &t;
    const struct safetensors_tensor **hit =
        bsearch(&key, c->tensors, c->tensors_count, sizeof(void *), by_name);
    return hit ? *hit : NULL;
}

static const struct safetensors_tensor *vfind(const struct checkpoint *c, const char *prefix,
                                              const char *fmt, va_list ap) {
    struct strbuf b = {0};
    strbuf_add_str(&b, prefix);
    strbuf_vprintf(&b, fmt, ap);
    const struct safetensors_tensor *t = checkpoint_find(c, strbuf_str(&b));
    strbuf_fini(&b);
    return t;
}

const struct safetensors_tensor *checkpoint_text(const struct checkpoint *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const struct safetensors_tensor *t = vfind(c, c->info.text_prefix, fmt, ap);
    va_end(ap);
    return t;
}

const struct safetensors_tensor *checkpoint_under(const struct checkpoint *c, const char *prefix,
                                                  const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const struct safetensors_tensor *t = vfind(c, prefix, fmt, ap);
    va_end(ap);
    return t;
}

const struct safetensors_tensor *checkpoint_head(const struct checkpoint *c) {
    return c->head ? c->head : checkpoint_text(c, "embed_tokens.weight");
}

const char *checkpoint_head_key(const struct checkpoint *c) {
    return c->head_key;
}

enum checkpoint_experts checkpoint_experts(const struct checkpoint *c, const char *prefix,
                                           uint32_t layer) {
    // Either half will do: the missing one is then asked for by name.
    bool packed = checkpoint_under(c, prefix, "layers.%u.mlp.experts.gate_up_proj", layer) ||
                  checkpoint_under(c, prefix, "layers.%u.mlp.experts.down_proj", layer);
    return packed ? CHECKPOINT_EXPERTS_PACKED : CHECKPOINT_EXPERTS_SINGLE;
}

uint32_t checkpoint_count(const struct checkpoint *c) {
    return c->tensors_count;
}

const struct safetensors_tensor *checkpoint_at(const struct checkpoint *c, uint32_t idx) {
    assert(idx < c->tensors_count);
    return c->tensors[idx];
}

static void add_file(struct sha256 *h, const struct safetensors *s) {
    uint64_t bytes = safetensors_file_bytes(s), start = safetensors_data_start(s);
    const uint8_t *p = safetensors_file(s);
    sha256_add(h, &bytes, sizeof bytes); // little-endian, as the whole format is
    sha256_add(h, p, start);
    uint64_t data_bytes = bytes - start;
    if (data_bytes <= (uint64_t)CHECKPOINT_DIGEST_PAGES * PAGE_BYTES) {
        sha256_add(h, p + start, data_bytes);
        return;
    }
    uint64_t room = data_bytes - PAGE_BYTES;
    for (uint64_t i = 0; i < CHECKPOINT_DIGEST_PAGES; i++) {
        uint64_t at = room / (CHECKPOINT_DIGEST_PAGES - 1) * i;
        if (i == CHECKPOINT_DIGEST_PAGES - 1) at = room; // to the last byte
        sha256_add(h, p + start + at, PAGE_BYTES);
    }
}

void checkpoint_digest(const struct checkpoint *c, char ret[CHECKPOINT_DIGEST_HEX_BYTES]) {
    static_assert((int)CHECKPOINT_DIGEST_HEX_BYTES == (int)SHA256_HEX_BYTES, "one digest");
    uint8_t digest[SHA256_BYTES];
    struct sha256 *h = sha256_new();
    sha256_add(h, c->config_text.p, c->config_text.len);
    for (uint32_t i = 0; i < c->files_count; i++) add_file(h, c->files[i]);
    sha256_digest(h, digest);
    sha256_free(h);
    sha256_hex(digest, ret);
}
