/* exl3_quantise: makes an EXL3 checkpoint of a small plain one, of any layout that the engine reads.
 *
 *   exl3_quantise MODEL OUT [options]
 *     --codebook=mul1|mcg|3inst   mul1
 *     --bits=B                    of a weight; 1 to 8, halves with mul1; 4
 *     --head-bits=B               of lm_head, which a tied model gets as a copy of its embedding; 6
 *     --width=PATTERN=B           of the linears whose key matches (as a shell matches names); the last that matches rules.
 *                                 B "plain": left as it is
 *     --moments=FILE              safetensors with KEY.moments, F32 [inputs, inputs]: what tests/tools/moments.py writes
 *     --seed=N --threads=N        1; one per CPU
 *
 * Linears whose two sizes are multiples of 128 are quantised; packed experts are taken apart, as the format has them. All
 * else (embedding, norms, routers, convolutions, gates) is copied. OUT is made; its other files (tokenizer, template) are the
 * caller's to copy. Prints a line for each linear and the loss of all, taken from what the engine's decoder makes of it. */
#include "common/err.h"
#include "common/mem.h"
#include "kernels/cpu_pool.h"
#include "tests/tools/exl3_file.h"
#include "tests/tools/exl3_linear.h"
#include "worker/engine/checkpoint.h"

#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { WIDTHS_MAX = 64, PLAIN = 0 };

struct width {
    const char *pattern; // of a key
    uint32_t half_bits;
};

struct job {
    const char *model, *out, *moments_path;
    enum exl3_codebook codebook;
    uint32_t half_bits, head_half_bits, widths_count, threads;
    struct width widths[WIDTHS_MAX];
    uint64_t seed;
    struct checkpoint *ckpt;
    struct safetensors *moments;
    struct cpu_pool *pool;
    struct exl3_file *file;
    // of all linears so far
    double weight_loss, output_loss; // sums, weighed by the weights of a linear
    uint64_t weights, moment_weights;
    uint32_t linears;
};

static const char *const linears[] = {
    "q_proj",      "k_proj",    "v_proj",    "o_proj",    "gate_proj", "up_proj", "down_proj",
    "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj",  "fc",      "lm_head"};

static int parse_bits(const char *text, uint32_t *ret, struct err *e) {
    char *end;
    double v = strtod(text, &end);
    if (!strcmp(text, "plain"))
        *ret = PLAIN;
    else if (*end || end == text || v < 1 || v > 8 || v * 2 != floor(v * 2))
        return err_set(e, ST_INVAL, "'%s': wanted 1 to 8 bits in halves, or plain", text);
    else
        *ret = (uint32_t)(2 * v);
    return ST_OK;
}

static int parse_width(struct job *j, char *text, struct err *e) {
    char *eq = strrchr(text, '=');
    if (!eq || j->widths_count == WIDTHS_MAX)
        return err_set(e, ST_INVAL, "--width=%s: wanted PATTERN=BITS, %d at most", text,
                       WIDTHS_MAX);
    *eq = '\0';
    struct width *w = &j->widths[j->widths_count++];
    w->pattern = text;
    return parse_bits(eq + 1, &w->half_bits, e);
}

static int parse_codebook(const char *text, enum exl3_codebook *ret, struct err *e) {
    static const char *const names[] = {"3inst", "mcg", "mul1"}; // as the enum counts them
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, names[i])) {
            *ret = (enum exl3_codebook)i;
            return ST_OK;
        }
    return err_set(e, ST_INVAL, "--codebook=%s: wanted mul1, mcg or 3inst", text);
}

static int parse(struct job *j, int argc, char **argv, struct err *e) {
    static const struct option options[] = {{"codebook", 1, NULL, 'c'},  {"bits", 1, NULL, 'b'},
                                            {"head-bits", 1, NULL, 'h'}, {"width", 1, NULL, 'w'},
                                            {"moments", 1, NULL, 'm'},   {"seed", 1, NULL, 's'},
                                            {"threads", 1, NULL, 't'},   {NULL, 0, NULL, 0}};
    int st = ST_OK, c;
    while (!st && (c = getopt_long(argc, argv, "", options, NULL)) != -1) switch (c) {
        case 'c': st = parse_codebook(optarg, &j->codebook, e); break;
        case 'b': st = parse_bits(optarg, &j->half_bits, e); break;
        case 'h': st = parse_bits(optarg, &j->head_half_bits, e); break;
        case 'w': st = parse_width(j, optarg, e); break;
        case 'm': j->moments_path = optarg; break;
        case 's': j->seed = strtoull(optarg, NULL, 10); break;
        case 't': j->threads = (uint32_t)strtoul(optarg, NULL, 10); break;
        default: st = err_set(e, ST_INVAL, "usage: exl3_quantise MODEL OUT [options]");
        }
    if (!st && argc - optind != 2)
        st = err_set(e, ST_INVAL, "usage: exl3_quantise MODEL OUT [options]");
    if (!st) j->model = argv[optind], j->out = argv[optind + 1];
    return st;
}

static uint32_t width_of(const struct job *j, const char *key) {
    uint32_t half_bits = strcmp(key, "lm_head") ? j->half_bits : j->head_half_bits;
    for (uint32_t i = 0; i < j->widths_count; i++)
        if (!fnmatch(j->widths[i].pattern, key, 0)) half_bits = j->widths[i].half_bits;
    return half_bits;
}

static bool is_linear(const char *key, uint64_t rows, uint64_t cols) {
    const char *dot = strrchr(key, '.'), *last = dot ? dot + 1 : key;
    if (rows % EXL3_BLOCK || cols % EXL3_BLOCK) return false;
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++)
        if (!strcmp(last, linears[i])) return true;
    return false;
}

static int moments_of(const struct job *j, const struct exl3_source *s, const float **ret,
                      struct err *e) {
    char name[SAFETENSORS_NAME_BYTES_MAX];
    snprintf(name, sizeof name, "%s.moments", s->name);
    const struct safetensors_tensor *t = j->moments ? safetensors_find(j->moments, name) : NULL;
    *ret = NULL;
    if (!t) return ST_OK;
    if (t->dtype != SAFETENSORS_F32 || t->dims_count != 2 || t->dims[0] != s->cols ||
        t->dims[1] != s->cols)
        return err_set(e, ST_CORRUPT, "%s: %s: wanted F32 [%u, %u]", j->moments_path, name, s->cols,
                       s->cols);
    *ret = t->data;
    return ST_OK;
}

// The matrix [rows, cols] that begins at element `first` of t, as the linear `key`.
static int add_linear(struct job *j, const char *key, const struct safetensors_tensor *t,
                      uint64_t first, uint32_t rows, uint32_t cols, struct err *e) {
    float *w = mem_alloc((size_t)rows * cols * sizeof *w);
    struct exl3_source s = {.name = key,
                            .rows = rows,
                            .cols = cols,
                            .w = w,
                            .codebook = j->codebook,
                            .half_bits = width_of(j, key),
                            .seed = j->seed};
    struct exl3_linear l = {0};
    safetensors_to_f32(t, first, (uint64_t)rows * cols, w);
    int st = moments_of(j, &s, &s.moments, e);
    if (!st) st = exl3_linear_make(&l, &s, j->pool, e);
    if (!st) {
        uint64_t n = (uint64_t)rows * cols;
        printf("%-52s [%5u,%5u] %3g bits  weights %.5f", key, rows, cols, s.half_bits / 2.0,
               l.weight_loss);
        if (s.moments) printf("  outputs %.5f", l.output_loss);
        printf("\n");
        fflush(stdout);
        j->weight_loss += l.weight_loss * (double)n;
        j->weights += n;
        if (s.moments) j->output_loss += l.output_loss * (double)n, j->moment_weights += n;
        j->linears++;
        exl3_file_add_linear(j->file, &s, &l);
    }
    free(w);
    return st;
}

static bool ends_with(const char *s, const char *end) {
    size_t a = strlen(s), b = strlen(end);
    return a >= b && !strcmp(s + a - b, end);
}

// Experts in one tensor, each of so many matrices that the format can hold.
static bool is_packed(const struct safetensors_tensor *t, const char *end, uint32_t matrices) {
    return t->dims_count == 3 && ends_with(t->name, end) &&
           t->dims[1] % (matrices * EXL3_BLOCK) == 0 && t->dims[2] % EXL3_BLOCK == 0;
}

// The experts of a packed tensor, as the linears KEY.E.gate_proj and so on.
static int add_experts(struct job *j, const struct safetensors_tensor *t, const char *const *parts,
                       uint32_t parts_count, struct err *e) {
    char key[SAFETENSORS_NAME_BYTES_MAX];
    int stem = (int)(strrchr(t->name, '.') - t->name);
    uint32_t rows = (uint32_t)(t->dims[1] / parts_count), cols = (uint32_t)t->dims[2];
    int st = ST_OK;
    for (uint32_t x = 0; x < t->dims[0]; x++)
        for (uint32_t p = 0; p < parts_count && !st; p++) {
            snprintf(key, sizeof key, "%.*s.%u.%s", stem, t->name, x, parts[p]);
            st =
                add_linear(j, key, t, ((uint64_t)x * parts_count + p) * rows * cols, rows, cols, e);
        }
    return st;
}

static int add_tensor(struct job *j, const struct safetensors_tensor *t, struct err *e) {
    static const char *const gate_up[] = {"gate_proj", "up_proj"}, *const down[] = {"down_proj"};
    char key[SAFETENSORS_NAME_BYTES_MAX];
    if (is_packed(t, ".experts.gate_up_proj", 2)) return add_experts(j, t, gate_up, 2, e);
    if (is_packed(t, ".experts.down_proj", 1)) return add_experts(j, t, down, 1, e);
    snprintf(key, sizeof key, "%s", t->name);
    if (t->dims_count == 2 && ends_with(key, ".weight")) {
        key[strlen(key) - strlen(".weight")] = '\0';
        if (is_linear(key, t->dims[0], t->dims[1]) && width_of(j, key) != PLAIN)
            return add_linear(j, key, t, 0, (uint32_t)t->dims[0], (uint32_t)t->dims[1], e);
    }
    exl3_file_add(j->file, t->name, t->dtype, t->dims, t->dims_count, t->data, t->bytes);
    return ST_OK;
}

static int read_config(const struct job *j, json_t **ret, struct err *e) {
    char path[4096];
    json_error_t why;
    snprintf(path, sizeof path, "%s/config.json", j->model);
    *ret = json_load_file(path, 0, &why);
    return *ret ? ST_OK : err_set(e, ST_CORRUPT, "%s: line %d: %s", path, why.line, why.text);
}

static int quantise(struct job *j, struct err *e) {
    json_t *config = NULL;
    int st = checkpoint_open(&j->ckpt, j->model, e);
    if (!st) st = checkpoint_check_shapes(j->ckpt, e);
    if (!st && j->moments_path) st = safetensors_open(&j->moments, j->moments_path, e);
    if (!st) st = cpu_pool_new(&j->pool, j->threads, e);
    if (!st) st = read_config(j, &config, e);
    if (!st && mkdir(j->out, 0777) && errno != EEXIST) st = err_errno(e, "make '%s'", j->out);
    j->file = exl3_file_new();
    for (uint32_t i = 0; !st && i < checkpoint_count(j->ckpt); i++)
        st = add_tensor(j, checkpoint_at(j->ckpt, i), e);
    if (!st && checkpoint_info(j->ckpt)->tied && j->head_half_bits != PLAIN) {
        const struct safetensors_tensor *t = checkpoint_head(j->ckpt);
        if (is_linear("lm_head", t->dims[0], t->dims[1]))
            st = add_linear(j, "lm_head", t, 0, (uint32_t)t->dims[0], (uint32_t)t->dims[1], e);
    }
    double head = width_of(j, "lm_head") ? width_of(j, "lm_head") / 2.0 : 16;
    if (!st) st = exl3_file_write(j->file, j->out, config, j->codebook, head, e);
    json_decref(config);
    return st;
}

static void print_total(const struct job *j) {
    struct exl3_file_total t = exl3_file_total(j->file);
    printf("%u linears of %llu weights, %.3f bits a weight without the head; %llu bytes in all\n",
           j->linears, (unsigned long long)j->weights, (double)t.bits / (double)t.weights,
           (unsigned long long)t.bytes);
    printf("loss against the plain checkpoint, squared and relative: weights %.5f",
           j->weight_loss / (double)j->weights);
    if (j->moment_weights) printf(", outputs %.5f", j->output_loss / (double)j->moment_weights);
    printf("\n");
}

int main(int argc, char **argv) {
    struct job j = {.codebook = EXL3_MUL1, .half_bits = 8, .head_half_bits = 12, .seed = 1};
    struct err e = {0};
    int st = parse(&j, argc, argv, &e);
    if (!st) st = quantise(&j, &e);
    if (!st)
        print_total(&j);
    else
        fprintf(stderr, "exl3_quantise: %s\n", e.msg);
    exl3_file_free(j.file);
    cpu_pool_free(j.pool);
    safetensors_close(j.moments);
    checkpoint_close(j.ckpt);
    return st ? EXIT_FAILURE : EXIT_SUCCESS;
}
