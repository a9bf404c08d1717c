/* checkpoint_linear: every form of an EXL3 linear is read for what it is, and every broken one is refused in a line that names
 * file, tensor, wanted and found. */
#include "common/err.h"
#include "common/strbuf.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"
#include "worker/engine/checkpoint.h"
#include "worker/engine/checkpoint_linear.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char config_text[] =
    "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":128,\"num_hidden_layers\":1,\"vocab_size\":"
    "16,"
    "\"intermediate_size\":256,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"quantization_config\":{\"quant_method\":\"exl3\",\"bits\":4}}";

enum { PARTS_MAX = 6, KEY_BYTES = 128 };
#define KEY "model.layers.0.mlp.up_proj"

struct part { // of the linear KEY
    const char *end, *dtype, *shape;
    uint32_t bytes, value; // value: of the first four bytes
};

struct linear {
    struct part parts[PARTS_MAX];
};

static char dir[400];

static void add(struct strbuf *header, struct strbuf *data, const char *name,
                const struct part *p) {
    size_t at = data->len;
    for (uint32_t i = 0; i < p->bytes; i++)
        strbuf_add_char(data, (char)(i < 4 ? p->value >> 8 * i : 0));
    strbuf_printf(header, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                  header->len ? ',' : '{', name, p->dtype, p->shape, at, data->len);
}

static void put_file(const char *name, const void *p, size_t len) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    CHECK_EQ(fwrite(p, 1, len, f), len);
    fclose(f);
}

// A folder with an embedding and the linear; four-byte tensors first, so that each starts where it may.
static void make(const struct linear *l) {
    static int n;
    struct strbuf header = {0}, data = {0}, file = {0};
    char name[KEY_BYTES];
    snprintf(dir, sizeof dir, "%s/%d", test_temp_dir(), n++);
    CHECK_EQ(mkdir(dir, 0700), 0);
    put_file("config.json", config_text, strlen(config_text));
    for (int wide = 1; wide >= 0; wide--)
        for (int i = 0; i < PARTS_MAX && l->parts[i].end; i++) {
            const struct part *p = &l->parts[i];
            if ((strstr(p->dtype, "32") != NULL) != wide) continue;
            snprintf(name, sizeof name, KEY ".%s", p->end);
            add(&header, &data, name, p);
        }
    add(&header, &data, "model.embed_tokens.weight",
        &(struct part){.dtype = "BF16", .shape = "[16,128]", .bytes = 4096});
    strbuf_add_char(&header, '}');
    while (header.len % 8) strbuf_add_char(&header, ' ');
    uint64_t length = header.len;
    strbuf_add(&file, &length, sizeof length);
    strbuf_add(&file, header.p, header.len);
    strbuf_add(&file, data.p, data.len);
    put_file("model.safetensors", file.p, file.len);
    strbuf_fini(&header);
    strbuf_fini(&data);
    strbuf_fini(&file);
}

// 128 inputs, 256 outputs
#define TRELLIS(bytes_, shape_)                                                                    \
    { "trellis", "I16", shape_, bytes_, 0 }
#define T4 TRELLIS(16384, "[8,16,64]")
#define SUH                                                                                        \
    { "suh", "F16", "[128]", 256, 0 }
#define SVH                                                                                        \
    { "svh", "F16", "[256]", 512, 0 }
#define SU                                                                                         \
    { "su", "I16", "[8]", 16, 0 }
#define SV                                                                                         \
    { "sv", "I16", "[16]", 32, 0 }
#define MUL1                                                                                       \
    { "mul1", "I32", "[]", 4, 0x83dcd12d }
#define MCG                                                                                        \
    { "mcg", "I32", "[1]", 4, 0xcbac1fed }

TEST(every_form_of_an_exl3_linear_is_read) {
    static const struct {
        struct linear l;
        const char *format;
        uint64_t bytes;
        bool signs_in, signs_out, bias;
    } cases[] = {
        {{{T4, SUH, SVH}}, "EXL3 4 bits 3INST", 16384 + 768, 0, 0, 0},
        {{{T4, SUH, SVH, MCG}}, "EXL3 4 bits MCG", 16384 + 772, 0, 0, 0},
        {{{T4, SUH, SVH, MUL1}}, "EXL3 4 bits MUL1", 16384 + 772, 0, 0, 0},
        {{{TRELLIS(4096, "[8,16,16]"), SUH, SVH, MCG}}, "EXL3 1 bits MCG", 4096 + 772, 0, 0, 0},
        {{{TRELLIS(32768, "[8,16,128]"), SUH, SVH}}, "EXL3 8 bits 3INST", 32768 + 768, 0, 0, 0},
        {{{TRELLIS(6144, "[8,16,24]"), SUH, SVH, MUL1}}, "EXL3 1.5 bits MUL1", 6144 + 772, 0, 0, 0},
        {{{TRELLIS(14336, "[8,16,56]"), SUH, SVH, MUL1}},
         "EXL3 3.5 bits MUL1",
         14336 + 772,
         0,
         0,
         0},
        {{{T4, SU, SVH}}, "EXL3 4 bits 3INST", 16384 + 16 + 512, 1, 0, 0},
        {{{T4, SU, SV}}, "EXL3 4 bits 3INST", 16384 + 48, 1, 1, 0},
        {{{T4, SUH, SVH, SU, SV}}, "EXL3 4 bits 3INST", 16384 + 768, 0, 0, 0},
        {{{T4, SUH, SVH, MUL1, {"bias", "F16", "[256]", 512, 0}}},
         "EXL3 4 bits MUL1",
         16384 + 772 + 512,
         0,
         0,
         1},
        {{{T4, SUH, SVH, MUL1, {"bias", "F32", "[256]", 1024, 0}}},
         "EXL3 4 bits MUL1",
         16384 + 772 + 1024,
         0,
         0,
         1},
        {{{T4, SUH, SVH, {"scale", "F32", "[1]", 4, 0}}},
         "EXL3 4 bits 3INST",
         16384 + 768,
         0,
         0,
         0},
        {{{T4, SUH, SVH, {"weight", "BF16", "[256,128]", 65536, 0}}},
         "EXL3 4 bits 3INST",
         16384 + 768,
         0,
         0,
         0},
        {{{{"weight", "BF16", "[256,128]", 65536, 0}}}, "BF16", 65536, 0, 0, 0},
        {{{{"weight", "F32", "[256,128]", 131072, 0}}}, "F32", 131072, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct checkpoint *c = NULL;
        struct checkpoint_linear l;
        struct err e = {0};
        char format[CHECKPOINT_FORMAT_BYTES];
        make(&cases[i].l);
        CHECK_OK(checkpoint_open(&c, dir, &e), e);
        CHECK_OK(checkpoint_linear(c, KEY, &l, &e), e);
        checkpoint_linear_format(&l, format);
        CHECK_STR(format, cases[i].format);
        CHECK_EQ(l.rows, 256);
        CHECK_EQ(l.cols, 128);
        CHECK_EQ(l.bytes, cases[i].bytes);
        if (l.half_bits) {
            CHECK_EQ(l.in_factors->dtype == SAFETENSORS_I16, cases[i].signs_in);
            CHECK_EQ(l.out_factors->dtype == SAFETENSORS_I16, cases[i].signs_out);
            CHECK_EQ(l.bias != NULL, cases[i].bias);
        }
        CHECK_EQ(checkpoint_info(c)->text_parameters,
                 16 * 128 + 256 * 128 + (l.bias ? 256 : 0) + (i == 12) + // the old scale
                     (i == 13 ? 256 * 128 : 0));                         // the weight nobody reads
        checkpoint_close(c);
    }
}

TEST(a_broken_exl3_linear_is_refused_in_one_line) {
    static const struct {
        struct linear l;
        int st;
        const char *part; // behind file and KEY
    } cases[] = {
        {{{SUH, SVH, MUL1}}, ST_NOT_FOUND, ".weight': wanted, found in no file"},
        {{{T4, SVH}}, ST_CORRUPT, ".trellis': wanted '.suh' or '.su' with it, found neither"},
        {{{T4, SUH}}, ST_CORRUPT, ".trellis': wanted '.svh' or '.sv' with it, found neither"},
        {{{T4, SUH, SVH, MUL1, MCG}},
         ST_CORRUPT,
         ".mul1': wanted one codebook marker, found '.mcg' too"},
        {{{T4, SUH, SVH, {"mul1", "I32", "[]", 4, 7}}},
         ST_UNSUPPORTED,
         ".mul1': wanted 0x83DCD12D, the multiplier of MUL1, found 0x00000007"},
        {{{T4, SUH, SVH, {"mcg", "I32", "[]", 4, 0x83dcd12d}}},
         ST_UNSUPPORTED,
         ".mcg': wanted 0xCBAC1FED, the multiplier of MCG, found 0x83DCD12D"},
        {{{T4, SUH, SVH, {"mcg", "I32", "[2]", 8, 0xcbac1fed}}},
         ST_CORRUPT,
         ".mcg': wanted one element, found 2"},
        {{{T4, SUH, SVH, {"mcg", "F32", "[1]", 4, 0}}},
         ST_UNSUPPORTED,
         ".mcg': wanted I32, found F32"},
        {{{TRELLIS(14336, "[8,16,56]"), SUH, SVH, MCG}},
         ST_UNSUPPORTED,
         ".trellis': wanted the codebook MUL1 with 3.5 bits, found MCG"},
        {{{TRELLIS(14336, "[8,16,56]"), SUH, SVH}},
         ST_UNSUPPORTED,
         ".trellis': wanted the codebook MUL1 with 3.5 bits, found 3INST"},
        {{{{"trellis", "F16", "[8,16,64]", 16384, 0}, SUH, SVH}},
         ST_UNSUPPORTED,
         ".trellis': wanted I16, found F16"},
        {{{TRELLIS(16384, "[8,1024]"), SUH, SVH}},
         ST_CORRUPT,
         ".trellis': wanted three dimensions, found [8, 1024]"},
        {{{TRELLIS(16384, "[8,16,64,1]"), SUH, SVH}},
         ST_CORRUPT,
         ".trellis': wanted three dimensions, found [8, 16, 64, 1]"},
        {{{TRELLIS(2048, "[8,16,8]"), SUH, SVH}},
         ST_CORRUPT,
         ".trellis': wanted tiles of 16 to 128 words in steps of 8 (1 to 8 bits), found [8, 16, "
         "8]"},
        {{{TRELLIS(15360, "[8,16,60]"), SUH, SVH}},
         ST_CORRUPT,
         "in steps of 8 (1 to 8 bits), found"},
        {{{TRELLIS(36864, "[8,16,144]"), SUH, SVH}}, ST_CORRUPT, "found [8, 16, 144]"},
        {{{TRELLIS(8192, "[4,16,64]"), SUH, SVH}},
         ST_CORRUPT,
         ".trellis': wanted multiples of 128 inputs and outputs, found 64 and 256 in [4, 16, 64]"},
        {{{TRELLIS(9216, "[8,9,64]"), SUH, SVH}},
         ST_CORRUPT,
         "wanted multiples of 128 inputs and outputs, found 128 and 144 in [8, 9, 64]"},
        {{{T4, {"suh", "F16", "[256]", 512, 0}, SVH}},
         ST_CORRUPT,
         ".suh': wanted shape [128], found [256]"},
        {{{T4, {"suh", "BF16", "[128]", 256, 0}, SVH}},
         ST_UNSUPPORTED,
         ".suh': wanted F16, found BF16"},
        {{{T4, SUH, {"svh", "F16", "[2,128]", 512, 0}}},
         ST_CORRUPT,
         ".svh': wanted shape [256], found [2, 128]"},
        {{{T4, {"su", "I16", "[128]", 256, 0}, SVH}},
         ST_CORRUPT,
         ".su': wanted shape [8], found [128]"},
        {{{T4, SUH, {"sv", "F16", "[16]", 32, 0}}}, ST_UNSUPPORTED, ".sv': wanted I16, found F16"},
        {{{T4, SUH, SVH, {"bias", "F16", "[128]", 256, 0}}},
         ST_CORRUPT,
         ".bias': wanted shape [256], found [128]"},
        {{{T4, SUH, SVH, {"bias", "BF16", "[256]", 512, 0}}},
         ST_UNSUPPORTED,
         ".bias': wanted F16, found BF16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct checkpoint *c = NULL;
        struct checkpoint_linear l;
        struct err e = {0};
        make(&cases[i].l);
        CHECK_OK(checkpoint_open(&c, dir, &e), e);
        int st = checkpoint_linear(c, KEY, &l, &e);
        if (st != cases[i].st || !strstr(e.msg, cases[i].part))
            test_fail(__FILE__, __LINE__, "case %zu: found status %d '%s', wanted %d '%s'", i, st,
                      e.msg, cases[i].st, cases[i].part);
        CHECK_HAS(e.msg, "tensor '" KEY);
        CHECK(st == ST_NOT_FOUND || strstr(e.msg, "model.safetensors'"));
        CHECK(strchr(e.msg, '\n') == NULL);
        checkpoint_close(c);
    }
}

static const char tiny_args[] = "--widths 4,3.5,plain,2 --codebooks mul1,mcg --head-width 6 --mtp "
                                "--hidden 128 --intermediate 256 --head-dim 64 --dk 32 --dv 32";

TEST(a_walk_over_the_tensors_finds_each_linear_once_with_its_bits) {
    struct checkpoint *c = NULL;
    struct err e = {0};
    double bits = 0, weights = 0;
    uint32_t exl3 = 0, plain = 0, mtp = 0;
    CHECK_OK(checkpoint_open(&c, tiny_model(tiny_args), &e), e);
    CHECK_OK(checkpoint_check_shapes(c, &e), e);
    CHECK(checkpoint_config(c)->exl3);
    for (uint32_t i = 0; i < checkpoint_count(c); i++) {
        struct checkpoint_linear l;
        int st = checkpoint_linear_at(c, i, &l, &e);
        if (st) CHECK_EQ(st, ST_NOT_FOUND);
        if (st) continue;
        CHECK(l.main == checkpoint_at(c, i));
        exl3 += l.half_bits > 0;
        plain += !l.half_bits;
        mtp += l.half_bits && !strncmp(l.main->name, "mtp.", 4);
        if (l.half_bits) bits += l.half_bits / 2.0 * (double)(l.rows * l.cols);
        if (l.half_bits) weights += (double)(l.rows * l.cols);
    }
    CHECK_EQ(mtp, 6); // fc, q, o, gate, up, down; k and v are too narrow here
    CHECK(exl3 > 15 && plain > 8);
    CHECK_NEAR(bits / weights, checkpoint_config(c)->exl3_bits, 0.01);
    CHECK(!checkpoint_info(c)->tied);
    CHECK_STR(checkpoint_head(c)->name, "lm_head.trellis");
    CHECK_STR(checkpoint_head_key(c), "lm_head");
    CHECK_EQ(checkpoint_info(c)->other_tensors, 0);
    checkpoint_close(c);
}

// The sizes that the config wants are asked of every quantised linear.
TEST(an_exl3_linear_of_another_size_than_the_config_s_is_refused) {
    static const struct {
        const char *edit, *part;
    } cases[] = {
        {"s/\"intermediate_size\": 256/\"intermediate_size\": 384/",
         "mlp.gate_proj.trellis': wanted shape [8, 24, 32], found [8, 16, 32]"},
        {"s/\"intermediate_size\": 256/\"intermediate_size\": 200/",
         "mlp.gate_proj.trellis': wanted 128 inputs and 200 outputs, found [8, 16, 32]"},
        {"s/\"linear_num_value_heads\": 4/\"linear_num_value_heads\": 8/",
         "in_proj_qkv.trellis': wanted shape [8, 24, 64], found [8, 16, 64]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct checkpoint *c = NULL;
        struct err e = {0};
        char cmd[2000];
        snprintf(dir, sizeof dir, "%s/other%zu", test_temp_dir(), i);
        snprintf(cmd, sizeof cmd, "cp -r '%s' '%s' && sed -i '%s' '%s/config.json'",
                 tiny_model(tiny_args), dir, cases[i].edit, dir);
        CHECK_EQ(system(cmd), 0);
        CHECK_OK(checkpoint_open(&c, dir, &e), e);
        CHECK_EQ(checkpoint_check_shapes(c, &e), ST_CORRUPT);
        CHECK_HAS(e.msg, cases[i].part);
        checkpoint_close(c);
    }
}
