/* settings: every kind of value, their order of strength, and refusals that name the setting. */
#include "common/err.h"
#include "common/settings.h"
#include "common/strbuf.h"
#include "tests/lib/test.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct values {
    bool fast;
    int64_t rows, width, bytes;
    double wait_s;
    char *name, *kind, *mode;
};
static const struct setting table[] = {
    {"fast", SETTING_BOOL, offsetof(struct values, fast), "off", 0, 0, NULL, NULL, "a switch"},
    {"queue.rows", SETTING_INT, offsetof(struct values, rows), "7", 1, 100, NULL, "rows",
     "a count"},
    {"width", SETTING_INT_OR_0, offsetof(struct values, width), "0", 2, 32, NULL, NULL,
     "a count, or 0"},
    {"bytes", SETTING_BYTES, offsetof(struct values, bytes), "1KiB", 0, 0, NULL, "bytes", "a size"},
    {"wait_s", SETTING_REAL, offsetof(struct values, wait_s), "1.5", 0, 60, NULL, "s", "a time"},
    {"name", SETTING_STRING, offsetof(struct values, name), NULL, 0, 0, NULL, NULL, "a name"},
    {"kind", SETTING_STRING, offsetof(struct values, kind), "all", 1, 0, NULL, NULL, "a word"},
    {"mode", SETTING_CHOICE, offsetof(struct values, mode), "auto", 0, 0, "auto|cpu|cuda", NULL,
     "a word"},
};
enum { TABLE_COUNT = sizeof table / sizeof table[0] };

static int parse(struct settings *s, struct values *v, int argc, char **argv, int *args_count,
                 struct err *e) {
    const char *args[16];
    memset(v, 0, sizeof *v);
    settings_init(s, table, TABLE_COUNT, v);
    return settings_parse(s, argc, argv, args, args_count, e);
}

TEST(defaults_hold_without_flags) {
    struct settings s;
    struct values v;
    struct err e = {0};
    int n = -1;
    CHECK_OK(parse(&s, &v, 0, NULL, &n, &e), e);
    CHECK_EQ(n, 0);
    CHECK_EQ(v.fast, false);
    CHECK_EQ(v.rows, 7);
    CHECK_EQ(v.bytes, 1024);
    CHECK_NEAR(v.wait_s, 1.5, 0);
    CHECK_STR(v.name, "");
    CHECK_STR(v.mode, "auto");
    settings_fini(&s);
}

TEST(both_spellings_of_a_flag_and_what_is_no_flag) {
    struct settings s;
    struct values v;
    struct err e = {0};
    int n;
    char *argv[] = {"model",  "--queue.rows=9", "--name", "x=y",
                    "--fast", "--bytes=2 MiB",  "--",     "--rest"};
    CHECK_OK(parse(&s, &v, 8, argv, &n, &e), e);
    CHECK_EQ(n, 2);
    CHECK_EQ(v.rows, 9);
    CHECK_STR(v.name, "x=y");
    CHECK_EQ(v.fast, true);
    CHECK_EQ(v.bytes, 2 << 20);
    settings_fini(&s);
}

TEST(bad_values_are_refused_by_name) {
    static const struct {
        char *flag;
        const char *part;
    } cases[] = {
        {"--queue.rows=0", "queue.rows: wanted 1 to 100, found '0'"},
        {"--queue.rows=101", "queue.rows"},
        {"--width=1", "setting width: wanted 0 or 2 to 32, found '1'"},
        {"--width=33", "wanted 0 or 2 to 32, found '33'"},
        {"--width=-1", "wanted 0 or 2 to 32, found '-1'"},
        {"--kind=", "setting kind: wanted a value, found ''"},
        {"--queue.rows=7x", "whole number"},
        {"--queue.rows=", "whole number"},
        {"--queue.rows=99999999999999999999", "whole number"},
        {"--bytes=9999999999GiB", "bytes"},
        {"--bytes=1kb", "KiB"},
        {"--wait_s=nan", "wait_s"},
        {"--wait_s=1e9", "0 to 60"},
        {"--fast=maybe", "on or off"},
        {"--mode=gpu", "auto|cpu|cuda"},
        {"--mode=", "auto|cpu|cuda"},
        {"--mode=auto|cpu", "auto|cpu|cuda"},
        {"--queue.row=3", "did you mean 'queue.rows'"},
        {"--zzzzzzzzzz=3", "--help"},
        {"--port=3", "no setting 'port' (--help lists them)"}, // nothing is near enough to be meant
        {"--max=3", "no setting 'max' (--help lists them)"},
        {"--name", "wanted a value, found none"},
        {"--config", "wanted a value, found none"},
        {"--config=/nowhere/x", "/nowhere/x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct settings s;
        struct values v;
        struct err e = {0};
        int n;
        char *argv[] = {cases[i].flag};
        CHECK_NE(parse(&s, &v, 1, argv, &n, &e), ST_OK);
        CHECK_HAS(e.msg, cases[i].part);
        settings_fini(&s);
    }
}

TEST(a_flag_beats_the_file_wherever_it_stands) {
    char path[512];
    snprintf(path, sizeof path, "%s/f.conf", test_temp_dir());
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fputs("# a comment\n\n queue.rows = 50 # why\nname = from file\n", f);
    fclose(f);
    char flag[600];
    snprintf(flag, sizeof flag, "--config=%s", path);
    for (int swap = 0; swap < 2; swap++) {
        struct settings s;
        struct values v;
        struct err e = {0};
        int n;
        char *a[] = {flag, "--queue.rows=3"}, *b[] = {"--queue.rows=3", flag};
        CHECK_OK(parse(&s, &v, 2, swap ? b : a, &n, &e), e);
        CHECK_EQ(v.rows, 3);
        CHECK_STR(v.name, "from file");
        settings_fini(&s);
    }
}

TEST(a_bad_line_of_the_file_is_named_with_its_number) {
    char path[512];
    snprintf(path, sizeof path, "%s/bad.conf", test_temp_dir());
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fputs("name = x\nqueue.rows 3\n", f);
    fclose(f);
    struct settings s;
    struct values v = {0};
    struct err e = {0};
    settings_init(&s, table, TABLE_COUNT, &v);
    CHECK_EQ(settings_read_file(&s, path, &e), ST_INVAL);
    CHECK_HAS(e.msg, "bad.conf:2");
    settings_fini(&s);
}

TEST(a_printed_value_is_taken_back) {
    struct settings s, t;
    struct values v, w = {0};
    struct err e = {0};
    int n;
    char *argv[] = {"--bytes=3MiB", "--wait_s=0.125", "--fast", "--mode=cuda", "--name=a b"};
    CHECK_OK(parse(&s, &v, 5, argv, &n, &e), e);
    settings_init(&t, table, TABLE_COUNT, &w);
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        struct strbuf b = {0};
        settings_print(&s, &table[i], &b);
        CHECK_OK(settings_set(&t, table[i].name, strbuf_str(&b), 2, &e), e);
        strbuf_fini(&b);
    }
    CHECK_EQ(w.bytes, v.bytes);
    CHECK_NEAR(w.wait_s, v.wait_s, 0);
    CHECK_EQ(w.fast, true);
    CHECK_STR(w.mode, "cuda");
    CHECK_STR(w.name, "a b");
    settings_fini(&s);
    settings_fini(&t);
}
