/* program: railyard-worker as a user calls it: what its subcommands print, write and exit with. */
#include "common/strbuf.h"
#include "proto/exit_code.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static struct strbuf output; // of the last run: stdout and stderr

static int run_line(const char *line) {
    FILE *f = popen(line, "r");
    CHECK(f != NULL);
    char chunk[4096];
    strbuf_reset(&output);
    strbuf_add(&output, "", 0);
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0;) strbuf_add(&output, chunk, n);
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The words behind the program, through the shell, with `in` on stdin; its exit code.
static int run_with(const char *in, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int run_with(const char *in, const char *fmt, ...) {
    struct strbuf c = {0};
    const char *build = getenv("RAILYARD_BUILD");
    va_list ap;
    va_start(ap, fmt);
    strbuf_printf(&c, "exec 2>&1; printf '%%s' '%s' | '%s/railyard-worker' ", in,
                  build ? build : "build");
    strbuf_vprintf(&c, fmt, ap);
    va_end(ap);
    int code = run_line(c.p);
    strbuf_fini(&c);
    return code;
}
#define run(...) run_with("", __VA_ARGS__)

static const char *demo(void) {
    static char path[600];
    snprintf(path, sizeof path, "%s/tests/models/demo", test_source_dir());
    return path;
}

TEST(it_says_its_version_its_devices_and_how_it_is_called) {
    CHECK_EQ(run("version"), EXIT_CODE_OK);
    CHECK_HAS(output.p, "0.");
    CHECK_EQ(run("--list-devices"), EXIT_CODE_OK);
    json_t *v = json_loads(output.p, 0, NULL);
    CHECK(json_is_array(v));
    json_decref(v);
    CHECK_EQ(run("--help"), EXIT_CODE_OK);
    CHECK_HAS(output.p, "railyard-worker logits MODEL");
    CHECK_HAS(output.p, "--context=");
}

TEST(a_wrong_call_is_one_line_that_says_what_was_wanted) {
    static const struct {
        const char *args, *says;
        int code;
    } cases[] = {
        {"", "wanted worker, logits, inspect or bench engine", EXIT_CODE_USAGE},
        {"bench engine nowhere --write-costs=/nonexistent/c.json",
         "write-costs: wanted a file that can be written, found '/nonexistent/c.json'",
         EXIT_CODE_USAGE},
        {"bench engine nowhere --measure=crowd,wheels",
         "measure: wanted a list of "
         "shapes,operations,rounds,prompts,crowd,drafts,blocks,long,scratch,load,load-cold, "
         "found 'wheels'",
         EXIT_CODE_USAGE},
        {"bench engine nowhere --measure=", "setting measure: wanted a value", EXIT_CODE_USAGE},
        {"bench engine nowhere --measure=long --json=/nonexistent/x.json",
         "json: wanted a file that can be written", EXIT_CODE_USAGE},
        {"bench wheels x", "wanted worker, logits, inspect or bench engine", EXIT_CODE_USAGE},
        {"inspect", "wanted one MODEL", EXIT_CODE_USAGE},
        {"inspect a b", "wanted one MODEL", EXIT_CODE_USAGE},
        {"x --contxt=5", "did you mean 'context'", EXIT_CODE_USAGE},
        {"x --context=five", "setting context: wanted a whole number, found 'five'",
         EXIT_CODE_USAGE},
        {"x --config=/no/such/file", "/no/such/file", EXIT_CODE_USAGE},
        {"inspect /no/such/folder", "/no/such/folder", EXIT_CODE_MODEL},
        {"logits /no/such/folder --out=/dev/null", "wanted a JSON array", EXIT_CODE_USAGE},
        {"worker /no/such/folder --lobby=/no/such/lobby.sock --log.level=error", "/no/such/folder",
         EXIT_CODE_MODEL},
        {"worker x --lobby=tcp://127.0.0.1:9",
         "lobby 'tcp://127.0.0.1:9': wanted ipc:// and a path", EXIT_CODE_USAGE},
        {"worker x --lobby=ipc://", "lobby 'ipc://': wanted ipc:// and a path", EXIT_CODE_USAGE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_EQ(run("%s", cases[i].args), cases[i].code);
        CHECK_HAS(output.p, cases[i].says);
        CHECK(strchr(output.p, '\n') == output.p + output.len - 1); // one line
    }
}

// Once, and by name, that nobody is there; then quietly until somebody is.
TEST(a_worker_without_a_router_says_what_it_dials_and_why_in_vain) {
    struct strbuf c = {0};
    const char *build = getenv("RAILYARD_BUILD");
    strbuf_printf(
        &c, "timeout -s TERM 2 '%s/railyard-worker' worker '%s' --lobby=/no/such/lobby.sock 2>&1",
        build ? build : "build", demo());
    run_line(c.p);
    strbuf_fini(&c);
    const char *said = strstr(output.p, "warn  railyard-worker waiting_for_router");
    CHECK(said != NULL);
    CHECK_HAS(said, "lobby=\"ipc:///no/such/lobby.sock\" reason=\"dial the lobby");
    CHECK_HAS(said, "No such file or directory");
    CHECK(strstr(strchr(said, '\n'), "waiting_for_router") == NULL);
}

TEST(inspect_names_layers_types_and_sizes_and_finds_the_demo_right) {
    CHECK_EQ(run("inspect '%s'", demo()), EXIT_CODE_OK);
    CHECK_HAS(output.p, "8: 2 full attention, 6 delta net");
    CHECK_HAS(output.p, "BF16");
    CHECK_HAS(output.p, "layers.0.");
    CHECK_HAS(output.p, "right  ");
}

TEST(inspect_says_what_is_wrong_with_a_checkpoint) {
    struct strbuf copy = {0};
    char dir[300];
    snprintf(dir, sizeof dir, "%s/cut", test_temp_dir());
    // Every file but one of the shards, which is cut short.
    strbuf_printf(&copy, "from='%s'; to='%s'; shard=model-00002-of-00002.safetensors; ", demo(),
                  dir);
    strbuf_add_str(&copy, "mkdir $to && cp $from/*.json $from/model-00001-of-* $to && "
                          "head -c 5000 $from/$shard > $to/$shard");
    int status = system(copy.p);
    strbuf_fini(&copy);
    CHECK_EQ(status, 0);
    CHECK_EQ(run("inspect '%s'", dir), EXIT_CODE_MODEL);
    CHECK_HAS(output.p, "wrong  ");
    CHECK_HAS(output.p, "model-00002-of-00002.safetensors");
}

// The .npy as written with the given flags: its bytes, and how many there are.
static char *logits(const char *flags, size_t *ret_len) {
    char path[300];
    snprintf(path, sizeof path, "%s/l.npy", test_temp_dir());
    CHECK_EQ(run_with("[1, 2, 3, 500, 4032, 7, 8, 9, 10, 11]", "logits '%s' --out='%s' %s", demo(),
                      path, flags),
             EXIT_CODE_OK);
    FILE *f = fopen(path, "rb");
    CHECK(f != NULL);
    char *p = malloc(1 << 20);
    *ret_len = fread(p, 1, 1 << 20, f);
    fclose(f);
    return p;
}

TEST(logits_writes_a_numpy_file_whose_bits_do_not_follow_the_chunk) {
    size_t len, len_1;
    char *p = logits("", &len);
    CHECK_EQ(len, 128 + 10 * 4096 * 4);
    CHECK_MEM(p, "\x93NUMPY\x01\x00", 8);
    CHECK_HAS(p + 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (10, 4096), }");
    CHECK_EQ(p[127], '\n');
    char *p_1 = logits("--chunk=1", &len_1);
    CHECK_EQ(len_1, len);
    CHECK_MEM(p, p_1, len);
    free(p);
    free(p_1);
}

// A whole window of the demo, and one id more.
TEST(logits_takes_as_many_ids_as_the_context_has_and_no_more) {
    enum { CONTEXT = 4096 };
    struct strbuf ids = {0};
    for (int i = 0; i < CONTEXT; i++) strbuf_printf(&ids, "%c%d", i ? ',' : '[', i % 97);
    strbuf_add_char(&ids, ']');
    CHECK_EQ(run_with("[1,2,3,4,5]", "logits '%s' --out=/dev/null --context=5", demo()),
             EXIT_CODE_OK);
    CHECK_EQ(run_with("[1,2,3,4,5,6]", "logits '%s' --out=/dev/null --context=5", demo()),
             EXIT_CODE_USAGE);
    CHECK_HAS(output.p, "ids: wanted at most 5 (context), found 6");
    CHECK_EQ(run_with("[1,2,9999]", "logits '%s' --out=/dev/null --context=5", demo()),
             EXIT_CODE_USAGE);
    CHECK_HAS(output.p, "ids[2]: wanted an id below 4096, found 9999");
    ids.p[ids.len - 1] = ',';
    strbuf_add_str(&ids, "7]");
    CHECK_EQ(run_with(ids.p, "logits '%s' --out=/dev/null", demo()), EXIT_CODE_USAGE);
    CHECK_HAS(output.p, "context: wanted at most the checkpoint's 4096, found 4097");
    strbuf_fini(&ids);
}

TEST(logits_refuses_what_is_no_list_of_ids_by_its_place) {
    static const struct {
        const char *in, *says;
    } cases[] = {
        {"[]", "at least one id"},
        {"{}", "at least one id"},
        {"[1, -1]", "element 1"},
        {"[1, 2, \"x\"]", "element 2"},
        {"[1", "wanted a JSON array of ids"},
        {"[4096]", "4096"}, // outside the vocabulary
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_EQ(run_with(cases[i].in, "logits '%s' --out=/dev/null", demo()), EXIT_CODE_USAGE);
        CHECK_HAS(output.p, cases[i].says);
    }
    CHECK_EQ(run_with("[1]", "logits '%s'", demo()), EXIT_CODE_USAGE);
    CHECK_HAS(output.p, "--out");
    CHECK(run_with("[1]", "logits '%s' --out=/no/such/folder/x.npy", demo()) != EXIT_CODE_OK);
    CHECK_HAS(output.p, "/no/such/folder/x.npy");
}

// A file that is there keeps its bytes, a link leads to what it led to, and nothing is left beside them.
TEST(logits_that_cannot_be_computed_leave_the_file_as_it_was) {
    size_t len, len_after;
    char line[1200];
    const char *dir = test_temp_dir();
    char *p = logits("", &len);
    CHECK_EQ(run_with("[1,2,9999]", "logits '%s' --out='%s/l.npy'", demo(), dir), EXIT_CODE_USAGE);
    CHECK_EQ(run_with("[1,2,9999]", "logits '%s' --out='%s/m.npy'", demo(), dir), EXIT_CODE_USAGE);
    snprintf(line, sizeof line, "cd '%s' && cat l.npy | wc -c && ls -d *.npy*", dir);
    CHECK_EQ(run_line(line), 0);
    snprintf(line, sizeof line, "%zu\nl.npy\n", len);
    CHECK_STR(output.p, line);
    snprintf(line, sizeof line,
             "cd '%s' && mkdir away && mv l.npy away/real && ln -s away/real l.npy", dir);
    CHECK_EQ(run_line(line), 0);
    char *again = logits("", &len_after);
    CHECK_EQ(len_after, len);
    CHECK_MEM(again, p, len);
    snprintf(line, sizeof line, "cd '%s' && test -L l.npy && ls away", dir);
    CHECK_EQ(run_line(line), 0);
    CHECK_STR(output.p, "real\n");
    CHECK_EQ(run_with("[1]", "logits '%s' --out=/dev/stdout", demo()), EXIT_CODE_OK);
    CHECK_EQ(output.len, 128 + 4096 * 4);
    free(p);
    free(again);
}

// The figures of a part in the file, of which each line is an object.
static uint32_t figures_of(const char *path, const char *part) {
    FILE *f = fopen(path, "r");
    char line[1000];
    uint32_t n = 0;
    CHECK(f != NULL);
    while (fgets(line, sizeof line, f)) {
        json_t *v = json_loads(line, 0, NULL);
        const char *name = json_string_value(json_object_get(v, "part"));
        CHECK(name != NULL);
        n += !strcmp(name, part);
        json_decref(v);
    }
    fclose(f);
    return n;
}

TEST(bench_engine_names_the_part_that_wants_a_gpu) {
    static const char *const parts[] = {"shapes", "operations", "blocks"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char says[80];
        snprintf(says, sizeof says, "measure: %s: wanted a GPU, found 'cpu'\n", parts[i]);
        CHECK_EQ(
            run("bench engine '%s' --backend=cpu --context=513 --measure=%s", demo(), parts[i]),
            EXIT_CODE_USAGE);
        CHECK_HAS(output.p, says);
    }
    CHECK_EQ(run("bench engine '%s' --backend=cpu --context=513 --profile", demo()),
             EXIT_CODE_USAGE);
    CHECK_HAS(output.p, "profile: shapes: wanted a GPU, found 'cpu'");
}

TEST(bench_engine_measures_the_parts_that_were_named_and_writes_their_figures) {
    char model[300], json[320], line[1500];
    snprintf(model, sizeof model, "%s/tiny", test_temp_dir());
    snprintf(json, sizeof json, "%s/figures.json", test_temp_dir());
    snprintf(line, sizeof line, "/usr/bin/python3 '%s/tests/tools/make_tiny.py' '%s' 2>&1",
             test_source_dir(), model);
    CHECK_EQ(run_line(line), 0);
    CHECK_EQ(
        run("bench engine '%s' --backend=cpu --threads=1 --context=513 --streams=9 --json='%s' "
            "--measure=load,crowd,rounds,prompts,scratch,load-cold",
            model, json),
        EXIT_CODE_OK);
    CHECK_HAS(output.p, "wholly below the other");
    CHECK_EQ(figures_of(json, "load"), 1);
    CHECK_EQ(figures_of(json, "load-cold"), 1);
    CHECK_EQ(figures_of(json, "crowd"), 1); // of 8 and one that joins
    CHECK_EQ(figures_of(json, "rounds"), 4);
    CHECK_EQ(figures_of(json, "scratch"), 17);
    CHECK_EQ(run("bench engine '%s' --backend=cpu --context=513 --json='%s' --measure=long", demo(),
                 json),
             EXIT_CODE_OK);
    CHECK_EQ(figures_of(json, "long"), 2);
    CHECK_EQ(figures_of(json, "crowd"), 1); // they are added
}

__attribute__((destructor)) static void give_back(void) {
    strbuf_fini(&output);
}
