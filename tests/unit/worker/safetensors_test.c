/* safetensors: a good file reads as it was written; every lie of a header is refused in one line that names it. */
#include "common/err.h"
#include "common/strbuf.h"
#include "tests/lib/test.h"
#include "worker/engine/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Length, header and data_bytes bytes of data 0, 1, 2, ... in b.
static void build(struct strbuf *b, uint64_t length, const char *header, size_t data_bytes) {
    strbuf_reset(b);
    strbuf_add(b, &length, sizeof length);
    strbuf_add_str(b, header);
    for (size_t i = 0; i < data_bytes; i++) strbuf_add_char(b, (char)i);
}

static void write_file(const char *path, const void *p, size_t len) {
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    CHECK_EQ(fwrite(p, 1, len, f), len);
    fclose(f);
}

static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
                           "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                           "\"c\":{\"dtype\":\"I16\",\"shape\":[],\"data_offsets\":[20,22]}}    ";

TEST(a_good_file_reads_as_it_was_written) {
    struct strbuf b = {0};
    struct safetensors *s = NULL;
    struct err e = {0};
    char path[512];
    build(&b, strlen(good), good, 22);
    snprintf(path, sizeof path, "%s/good.safetensors", test_temp_dir());
    write_file(path, b.p, b.len);
    CHECK_OK(safetensors_open(&s, path, &e), e);
    CHECK_EQ(safetensors_count(s), 3);
    CHECK_STR(safetensors_at(s, 0)->name, "a");
    CHECK_STR(safetensors_at(s, 2)->name, "c");
    const struct safetensors_tensor *t = safetensors_find(s, "b");
    CHECK(t != NULL);
    CHECK_EQ(t->dtype, SAFETENSORS_BF16);
    CHECK_EQ(t->dims_count, 2);
    CHECK_EQ(t->dims[0], 2);
    CHECK_EQ(t->dims[1], 3);
    CHECK_EQ(t->elements, 6);
    CHECK_EQ(t->bytes, 12);
    CHECK_MEM(t->data, "\10\11\12\13\14\15\16\17\20\21\22\23", 12);
    CHECK_STR(t->path, path);
    CHECK_EQ(safetensors_find(s, "c")->elements, 1);
    CHECK(safetensors_find(s, "d") == NULL);
    CHECK(safetensors_find(s, "__metadata__") == NULL);
    CHECK_EQ(safetensors_data_start(s), 8 + strlen(good));
    safetensors_close(s);
    strbuf_fini(&b);
}

TEST(values_of_each_float_type_are_exact) {
    static const uint16_t bf16[] = {0x3f80, 0xc040, 0x0001, 0x7f80};
    static const uint16_t f16[] = {0x3c00, 0xc200, 0x0001, 0x83ff, 0x7bff, 0xfc00, 0x8000, 0x0400};
    static const float f16_want[] = {1,     -3,        0x1p-24f, -0x3ffp-24f,
                                     65504, -INFINITY, -0.0f,    0x1p-14f};
    float got[8];
    struct safetensors_tensor t = {.dtype = SAFETENSORS_BF16, .elements = 4, .data = bf16};
    safetensors_to_f32(&t, 0, 4, got);
    CHECK(got[0] == 1 && got[1] == -3 && got[2] == 0x1p-133f && got[3] == INFINITY);
    t = (struct safetensors_tensor){.dtype = SAFETENSORS_F16, .elements = 8, .data = f16};
    safetensors_to_f32(&t, 0, 8, got);
    CHECK_MEM(got, f16_want, sizeof f16_want);
    t = (struct safetensors_tensor){.dtype = SAFETENSORS_F32, .elements = 8, .data = f16_want};
    safetensors_to_f32(&t, 3, 2, got);
    CHECK_MEM(got, f16_want + 3, 8);
}

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(a_lying_header_is_refused_with_what_was_wanted_and_found) {
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *part;
    } cases[] = {
        {"", 0, "header: wanted JSON"},
        {"not json", 0, "header: wanted JSON"},
        {"[1,2]", 0, "header: wanted a JSON object, found a list"},
        {"{\"a\":", 0, "header: wanted JSON"},
        {"{} x", 0, "header: wanted JSON"},
        {"{\"\xff\":1}", 0, "header: wanted JSON"},
        {"{\"a\\u0000b\":1}", 0, "header: wanted JSON"},
        {"{\"a\":3}", 0, "tensor 'a': wanted an object with dtype, shape, data_offsets, found 3"},
        {"{\"a\":{}}", 0, "tensor 'a': dtype: wanted a string, found nothing"},
        {"{" T("a", "F31", "[2]", "[0,8]") "}", 8,
         "tensor 'a': dtype: wanted BF16, F16, F32 or another of the format, found \"F31\""},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "dtype: wanted a string, found 7"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4,
         "tensor 'a': shape: wanted a list, found nothing"},
        {"{" T("a", "F32", "\"2\"", "[0,8]") "}", 8, "shape: wanted a list, found \"2\""},
        {"{" T("a", "F32", "[0]", "[0,0]") "}", 0,
         "shape: dimension 0: wanted a whole number from 1, found 0"},
        {"{" T("a", "F32", "[2,-1]", "[0,8]") "}", 8,
         "dimension 1: wanted a whole number from 1, found -1"},
        {"{" T("a", "F32", "[2.5]", "[0,8]") "}", 8,
         "dimension 0: wanted a whole number from 1, found 2.5"},
        {"{" T("a", "F32", "[1e2]", "[0,8]") "}", 8, "dimension 0: wanted a whole number"},
        {"{" T("a", "F32", "[null]", "[0,8]") "}", 8,
         "dimension 0: wanted a whole number from 1, found null"},
        {"{" T("a", "F32", "[[1]]", "[0,8]") "}", 8, "dimension 0: wanted a whole number"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4,
         "wanted at most 8 dimensions, found 9"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "[0,8]") "}", 8,
         "wanted fewer than 2^64 elements"},
        {"{" T("a", "F32", "[4611686018427387904]", "[0,8]") "}", 8,
         "wanted fewer than 2^64 bytes"},
        {"{" T("a", "F32", "[99999999999999999999]", "[0,8]") "}", 8, "header: wanted JSON"},
        {"{" T("a", "F32", "[2]", "[0,7]") "}", 8,
         "data_offsets: wanted 8 bytes for F32 [2], found 7"},
        {"{" T("a", "BF16", "[2]", "[0,8]") "}", 8,
         "data_offsets: wanted 4 bytes for BF16 [2], found 8"},
        {"{" T("a", "F32", "[2]", "[0,9]") "}", 8,
         "at most 8 (bytes of data in the file), found [0, 9]"},
        {"{" T("a", "F32", "[2]", "[8,0]") "}", 8, "wanted ascending"},
        {"{" T("a", "F32", "[2]", "[-8,0]") "}", 8,
         "wanted two whole numbers from 0, found [-8, 0]"},
        {"{" T("a", "F32", "[2]", "[0]") "}", 8, "wanted two whole numbers from 0, found [0]"},
        {"{" T("a", "F32", "[2]", "[0,8,9]") "}", 8, "wanted two whole numbers from 0"},
        {"{" T("a", "F32", "[2]", "[0.0,8.0]") "}", 8, "wanted two whole numbers from 0"},
        {"{" T("a", "F32", "[2]", "\"0-8\"") "}", 8,
         "wanted two whole numbers from 0, found \"0-8\""},
        {"{" T("a", "F32", "[2]", "[0,9223372036854775807]") "}", 8,
         "wanted ascending and at most 8"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[4,12]") "}", 12,
         "tensor 'b': wanted its data at byte 8 of the data, found 4: it overlaps the tensor "
         "before it"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[0,8]") "}", 8, "overlaps"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[12,20]") "}", 20,
         "tensor 'b': wanted its data at byte 8 of the data, found 12: bytes of no tensor"},
        {"{" T("a", "F32", "[2]", "[4,12]") "}", 12, "bytes of no tensor"},
        {"{" T("a", "F32", "[2]", "[0,8]") "}", 9, "for the tensors of its header, found"},
        {"{}", 4, "for the tensors of its header, found"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("a", "F32", "[2]", "[8,16]") "}", 16,
         "duplicate object key"},
        {"{" T("u", "U8", "[1]", "[0,1]") "," T("f", "F32", "[1]", "[1,5]") "}     ", 5,
         "tensor 'f': data_offsets: wanted a start on a multiple of 4 (F32)"},
        {"{\"a\\nb\\u001b\":3}", 0, "tensor 'a?b?': wanted an object"},
    };
    struct strbuf b = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct safetensors *s = NULL;
        struct err e = {0};
        char header[512]; // padded as writers do, so that data starts on a multiple of 8
        int n = snprintf(header, sizeof header, "%s", cases[i].header);
        while (n % 8) header[n++] = ' ';
        header[n] = '\0';
        build(&b, (uint64_t)n, header, cases[i].data_bytes);
        CHECK_EQ(safetensors_open_mem(&s, "dir/x.safetensors", b.p, b.len, &e), ST_CORRUPT);
        CHECK(s == NULL);
        CHECK_HAS(e.msg, "file 'dir/x.safetensors': ");
        CHECK_HAS(e.msg, cases[i].part);
        CHECK(strchr(e.msg, '\n') == NULL);
    }
    strbuf_fini(&b);
}

TEST(a_lying_header_length_is_refused) {
    static const struct {
        uint64_t length;
        size_t file_bytes; // cut to
        const char *part;
    } cases[] = {
        {0, 0, "wanted at least 8 bytes, found 0"},
        {0, 7, "wanted at least 8 bytes, found 7"},
        {0, 8, "header: wanted JSON"},
        {100, 50, "header length: wanted at most 42 (what the file holds), found 100"},
        {UINT64_MAX, 50, "header length: wanted at most 100000000, found 18446744073709551615"},
        {UINT64_MAX - 7, 50, "header length: wanted at most 100000000"},
        {1ull << 32, 50, "header length: wanted at most 100000000, found 4294967296"},
    };
    struct strbuf b = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct safetensors *s = NULL;
        struct err e = {0};
        build(&b, cases[i].length, good, 22);
        CHECK_EQ(safetensors_open_mem(&s, "x", b.p, cases[i].file_bytes, &e), ST_CORRUPT);
        CHECK_HAS(e.msg, cases[i].part);
    }
    strbuf_fini(&b);
}

/* Whatever length a good file is cut to, the answer is a message, never a read past its end (address sanitizer). */
TEST(a_file_cut_anywhere_is_refused) {
    struct strbuf b = {0};
    build(&b, strlen(good), good, 22);
    for (size_t n = 0; n < b.len; n++) {
        struct safetensors *s = NULL;
        struct err e = {0};
        char *exact = malloc(n ? n : 1); // its end is the sanitizer's border
        memcpy(exact, b.p, n);
        CHECK_EQ(safetensors_open_mem(&s, "x", exact, n, &e), ST_CORRUPT);
        free(exact);
    }
    strbuf_fini(&b);
}

/* One byte of the header changed: either refused or every tensor still lies inside the file. */
TEST(a_header_with_any_one_byte_changed_is_refused_or_stays_inside_the_file) {
    static const char bytes[] = {0, '0', '9', '-', '"', '[', '}', ' ', 'e', '.', (char)0x80};
    struct strbuf b = {0};
    for (size_t i = 0; i < 8 + sizeof good - 1; i++)
        for (size_t k = 0; k < sizeof bytes; k++) {
            struct safetensors *s = NULL;
            struct err e = {0};
            build(&b, strlen(good), good, 22);
            b.p[i] = bytes[k];
            if (safetensors_open_mem(&s, "x", b.p, b.len, &e)) continue;
            for (uint32_t t = 0; t < safetensors_count(s); t++) {
                const struct safetensors_tensor *x = safetensors_at(s, t);
                CHECK((const char *)x->data >= b.p && x->bytes <= b.len &&
                      (const char *)x->data + x->bytes <= b.p + b.len);
            }
            safetensors_close(s);
        }
    strbuf_fini(&b);
}

TEST(what_is_no_regular_file_is_refused_by_kind) {
    char path[512], loop[512];
    struct safetensors *s = NULL;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/a.dir", test_temp_dir());
    CHECK_EQ(mkdir(path, 0700), 0);
    CHECK_EQ(safetensors_open(&s, path, &e), ST_IO);
    CHECK_HAS(e.msg, "a.dir': wanted a regular file, found a folder");
    snprintf(path, sizeof path, "%s/a.pipe", test_temp_dir());
    CHECK_EQ(mkfifo(path, 0600), 0);
    CHECK_EQ(safetensors_open(&s, path, &e), ST_IO); // and does not wait for a writer
    CHECK_HAS(e.msg, "a.pipe': wanted a regular file, found a pipe");
    snprintf(path, sizeof path, "%s/loop1", test_temp_dir());
    snprintf(loop, sizeof loop, "%s/loop2", test_temp_dir());
    CHECK_EQ(symlink(loop, path), 0);
    CHECK_EQ(symlink(path, loop), 0);
    CHECK_EQ(safetensors_open(&s, path, &e), ST_IO);
    CHECK_HAS(e.msg, "loop1'");
    snprintf(path, sizeof path, "%s/nowhere", test_temp_dir());
    CHECK_EQ(safetensors_open(&s, path, &e), ST_NOT_FOUND);
    snprintf(path, sizeof path, "%s/gguf", test_temp_dir());
    write_file(path, "GGUF\3\0\0\0\0\0\0\0", 12);
    CHECK_EQ(safetensors_open(&s, path, &e), ST_UNSUPPORTED);
    CHECK_HAS(e.msg, "wanted safetensors, found GGUF");
    snprintf(path, sizeof path, "%s/empty", test_temp_dir());
    write_file(path, "", 0);
    CHECK_EQ(safetensors_open(&s, path, &e), ST_CORRUPT);
    CHECK_HAS(e.msg, "wanted at least 8 bytes, found 0");
    CHECK(s == NULL);
}
