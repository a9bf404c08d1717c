/* cmd_inspect: what a checkpoint holds and what is wrong with it. Opens and checks, loads nothing. */
#include "common/err.h"
#include "proto/exit_code.h"
#include "worker/cmd.h"
#include "worker/engine/checkpoint.h"
#include "worker/engine/checkpoint_linear.h"
#include "worker/engine/plan.h"
#include "worker/inspect_drafter.h"
#include "worker/options.h"

#include <stdio.h>
#include <string.h>

static void print_config(const struct model_config *c) {
    printf("family      %s%s%s, weights as %s\n", c->model_type,
           c->multimodal ? ", multimodal" : "", c->moe ? ", mixture of experts" : "", c->dtype);
    printf("layers      %u: %u full attention, %u delta net\n", c->layers, c->full_layers,
           c->layers - c->full_layers);
    printf("hidden      %u; vocabulary %u rows; context up to %u\n", c->hidden, c->vocab,
           c->max_position);
    printf("attention   %u heads, %u of keys and values, %u wide\n", c->heads, c->kv_heads,
           c->head_dim);
    printf("delta net   %u key heads of %u, %u value heads of %u, convolution over %u\n",
           c->linear_key_heads, c->linear_key_dim, c->linear_value_heads, c->linear_value_dim,
           c->linear_conv);
    if (c->moe)
        printf("experts     %u, %u a token, %u wide; shared %u\n", c->experts, c->experts_per_token,
               c->expert_width, c->shared_expert_width);
    else
        printf("mlp         %u\n", c->intermediate);
    printf("rope        theta %.15g, %u of each head's dimensions%s\n", c->rope.theta,
           c->rope.rotary_dim, c->rope.type == MODEL_ROPE_YARN ? ", YaRN" : "");
}

static void print_forms(const struct checkpoint_info *i) {
    printf("forms       experts packed in %u layers, one by one in %u", i->packed_layers,
           i->single_layers);
    if (i->both_layers) printf("; %u layers have both forms, packed taken", i->both_layers);
    printf("\n");
}

static void print_info(const struct checkpoint_info *i) {
    printf("tensors     %u text, %u MTP, %u vision, %u other, in %u files\n", i->text_tensors,
           i->mtp_tensors, i->vision_tensors, i->other_tensors, i->files);
    printf("text        %.3f M parameters, %.1f MiB, under '%s'; head %s\n",
           (double)i->text_parameters / 1e6, (double)i->text_bytes / (1 << 20), i->text_prefix,
           i->tied ? "tied to the embedding" : "of its own");
    printf("bytes       %.1f MiB in all, MTP %.1f MiB\n", (double)i->total_bytes / (1 << 20),
           (double)i->mtp_bytes / (1 << 20));
}

static void print_types(const struct checkpoint *c) {
    uint32_t counts[SAFETENSORS_DTYPE_COUNT] = {0};
    uint64_t bytes[SAFETENSORS_DTYPE_COUNT] = {0};
    for (uint32_t i = 0; i < checkpoint_count(c); i++) {
        const struct safetensors_tensor *t = checkpoint_at(c, i);
        counts[t->dtype]++;
        bytes[t->dtype] += t->bytes;
    }
    for (int d = 0; d < SAFETENSORS_DTYPE_COUNT; d++)
        if (counts[d])
            printf("  %-8s  %u tensors, %.1f MiB\n",
                   safetensors_dtype_name((enum safetensors_dtype)d), counts[d],
                   (double)bytes[d] / (1 << 20));
}

// How many linears have each width, and what a weight takes on average: text tower and head, then MTP.
static void print_widths(const struct checkpoint *c, bool mtp) {
    uint32_t counts[EXL3_HALF_BITS_MAX + 1] = {0};
    double bits = 0, weights = 0;
    for (uint32_t i = 0; i < checkpoint_count(c); i++) {
        struct checkpoint_linear l;
        struct err e = {0};
        bool of_mtp = strncmp(checkpoint_at(c, i)->name, "mtp.", 4) == 0;
        if (of_mtp != mtp || checkpoint_linear_at(c, i, &l, &e) || !l.half_bits) continue;
        counts[l.half_bits]++;
        bits += l.half_bits / 2.0 * (double)(l.rows * l.cols);
        weights += (double)(l.rows * l.cols);
    }
    int first = 0;
    if (weights == 0) return;
    printf("%s        %.2f bits a weight in %.3f M weights:", mtp ? "MTP " : "EXL3", bits / weights,
           weights / 1e6);
    for (uint32_t h = EXL3_HALF_BITS_MIN; h <= EXL3_HALF_BITS_MAX; h++)
        if (counts[h]) printf("%s%u at %g", first++ ? ", " : " ", counts[h], h / 2.0);
    printf("\n");
}

static void print_tensors(const struct checkpoint *c) {
    for (uint32_t i = 0; i < checkpoint_count(c); i++) {
        const struct safetensors_tensor *t = checkpoint_at(c, i);
        struct checkpoint_linear l;
        struct err e = {0};
        char shape[128], format[CHECKPOINT_FORMAT_BYTES] = "";
        safetensors_shape_text(t->dims, t->dims_count, shape, sizeof shape);
        int st = checkpoint_linear_at(c, i, &l, &e);
        if (!st && l.half_bits) checkpoint_linear_format(&l, format);
        printf("  %-72s %-8s %s%s%s\n", t->name, safetensors_dtype_name(t->dtype), shape,
               *format ? "  " : "", format);
    }
}

static void print_all(const struct checkpoint *c) {
    char digest[CHECKPOINT_DIGEST_HEX_BYTES];
    print_config(checkpoint_config(c));
    if (checkpoint_config(c)->moe) print_forms(checkpoint_info(c));
    print_info(checkpoint_info(c));
    print_widths(c, false);
    print_widths(c, true);
    print_types(c);
    print_tensors(c);
    checkpoint_digest(c, digest);
    printf("digest      %s\n", digest);
}

// The model, and what a worker with these settings would refuse of them, which serve asks before it starts one.
static int check(const struct options *o) {
    struct engine_config config;
    struct err e = {0};
    options_engine(o, &config);
    int st = plan_check(&config, &e);
    if (st)
        printf("%s%s\n", o->check ? "" : "wrong       ", e.msg);
    else if (!o->check)
        printf("right       every tensor that its text model needs is there, in shape\n");
    return st == ST_INVAL ? EXIT_CODE_USAGE : st ? EXIT_CODE_MODEL : EXIT_CODE_OK;
}

static int print(const struct options *o) {
    struct checkpoint *c = NULL;
    struct err e = {0};
    if (checkpoint_open(&c, o->model, &e)) {
        printf("%s%s\n", o->check ? "" : "wrong       ", e.msg);
        return EXIT_CODE_MODEL;
    }
    if (o->kind)
        printf("model\n");
    else
        print_all(c);
    checkpoint_close(c);
    return EXIT_CODE_OK;
}

int cmd_inspect(const struct options *o) {
    if (o->plan) return cmd_plan(o);
    bool drafter = inspect_is_drafter(o->model);
    if (o->kind && drafter) {
        printf("drafter\n");
        return EXIT_CODE_OK;
    }
    if (drafter) return inspect_drafter(o);
    int code = o->kind || !o->check ? print(o) : EXIT_CODE_OK;
    return code || o->kind ? code : check(o);
}
