/* cmd_bench: railyard bench concurrent URL, bench compare A B; bench engine is the worker program's. docs/bench.md */
#include "common/err.h"
#include "common/mem.h"
#include "common/settings.h"
#include "common/version.h"
#include "router/bench_compare.h"
#include "router/bench_progress.h"
#include "router/bench_receipt.h"
#include "router/bench_run.h"
#include "router/bench_server.h"
#include "router/bench_table.h"
#include "router/cmd.h"
#include "router/httpc.h"

#include <ctype.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct values {
    char *levels, *prompts, *cold, *json, *key;
    int64_t tokens, reps, seed;
    double stall_s;
    bool alone, serial, quiet;
};
#define IN(member_) offsetof(struct values, member_)
// Seeds pass through JSON, whose numbers are exact to 2^53.
static const struct setting table[] = {
    {"levels", SETTING_STRING, IN(levels), "1,2,4,8", 0, 0, NULL, NULL, "streams at once"},
    {"tokens", SETTING_INT, IN(tokens), "128", 2, 1 << 20, NULL, "tokens", "of each reply"},
    {"reps", SETTING_INT, IN(reps), "3", 1, 1000, NULL, NULL, "of each level and cold prompt"},
    {"prompts", SETTING_STRING, IN(prompts), NULL, 0, 0, NULL, NULL,
     "JSON lines: class (code or chat) and messages or prompt (default: built in)"},
    {"cold-prompts", SETTING_STRING, IN(cold), NULL, 0, 0, NULL, NULL,
     "JSON lines: each is filled with nothing kept, one token out"},
    {"alone", SETTING_BOOL, IN(alone), "off", 0, 0, NULL, NULL,
     "runs each stream alone first and holds all others against that"},
    {"serial", SETTING_BOOL, IN(serial), "off", 0, 0, NULL, NULL,
     "runs each stream with \"draft\": false first and holds all others against that"},
    {"seed", SETTING_INT, IN(seed), "1", 0, 9007199254740992.0 - BENCH_STREAMS_MAX, NULL, NULL,
     "stream k draws with this + k"},
    {"json", SETTING_STRING, IN(json), NULL, 0, 0, NULL, NULL, "file for the receipt"},
    {"key", SETTING_STRING, IN(key), NULL, 0, 0, NULL, NULL, "API key"},
    {"stall_s", SETTING_REAL, IN(stall_s), "300", 0.1, 86400, NULL, "s",
     "a reply fails when nothing comes for this long"},
    {"quiet", SETTING_BOOL, IN(quiet), "off", 0, 0, NULL, NULL, "no progress on stderr"},
};

static int usage(const struct settings *s, FILE *out) {
    fprintf(out, "use: railyard bench concurrent URL [flags]   measure a running server\n"
                 "     railyard bench compare A.json B.json    do two receipts say the same?\n"
                 "     railyard bench engine MODEL             measure the engine alone\n\n"
                 "URL is [http://]HOST:PORT or unix:/path. Exit status 1: not equal, or failed.\n\n"
                 "flags of concurrent:\n");
    settings_help(s, out);
    return 2;
}

/* ---- concurrent ---- */

static void set_date(struct bench_receipt *r) {
    time_t now = time(NULL);
    struct tm t;
    strftime(r->date, sizeof r->date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &t));
}

static void set_run(struct bench_receipt *r, const struct values *v, const char *url) {
    set_date(r);
    snprintf(r->client, sizeof r->client, "%s %s", version_string(), version_commit());
    snprintf(r->url, sizeof r->url, "%s", url);
    r->tokens = (uint32_t)v->tokens;
    r->reps = (uint32_t)v->reps;
    r->seed = (uint64_t)v->seed;
}

// Receipts of other ways to draw are not comparable either.
static void set_prompts_digest(struct bench_receipt *r, const struct bench_prompts *p) {
    struct sha256 *h = sha256_new();
    uint8_t digest[SHA256_BYTES];
    sha256_add(h, p->sha256, strlen(p->sha256) + 1);
    sha256_add(h, bench_ask_settings(), strlen(bench_ask_settings()));
    sha256_digest(h, digest);
    sha256_hex(digest, r->prompts_sha256);
    sha256_free(h);
}

static int read_prompts(const struct values *v, struct bench_prompts *prompts,
                        struct bench_prompts *cold, struct bench_receipt *r, struct err *e) {
    int st = ST_OK;
    if (*v->prompts)
        st = bench_prompts_read(prompts, v->prompts, true, e);
    else
        bench_prompts_builtin(prompts);
    if (!st) set_prompts_digest(r, prompts);
    if (st || !*v->cold) return st;
    st = bench_prompts_read(cold, v->cold, false, e);
    if (!st) memcpy(r->cold_sha256, cold->sha256, sizeof r->cold_sha256);
    return st;
}

// A long run whose receipt cannot be written at the end would be a pity.
static int check_writable(const char *path, struct err *e) {
    FILE *f = fopen(path, "ae");
    if (!f) return err_errno(e, "write '%.200s'", path);
    fclose(f);
    return ST_OK;
}

static int check_key(const char *key, struct err *e) {
    for (const char *p = key; *p; p++)
        if (iscntrl((unsigned char)*p))
            return err_set(e, ST_INVAL, "--key: wanted printable characters, found a control one");
    return ST_OK;
}

static bool all_equal(const struct bench_receipt *r) {
    uint32_t bad = 0;
    for (size_t i = 0; i < r->cell_count; i++) bad += r->cells[i].unequal + r->cells[i].failed;
    return !bad;
}

static int measure(const struct values *v, const struct bench_plan *plan,
                   const struct bench_target *t, struct bench_receipt *r, struct err *e) {
    struct bench_progress progress;
    bench_progress_init(&progress, v->quiet ? NULL : stderr, bench_plan_waves(plan));
    int st = bench_server_learn(r, t, e);
    if (!st) st = bench_run(r, plan, t, &progress, e);
    if (st) return st;
    bench_table_print(r, stdout);
    return *v->json ? bench_receipt_save(r, v->json, e) : ST_OK;
}

// *ret_bad_use: it did not come to asking the server.
static int concurrent(const struct values *v, const char *url, bool *ret_equal, bool *ret_bad_use,
                      struct err *e) {
    struct httpc_address address = {0};
    struct bench_prompts prompts = {0}, cold = {0};
    struct bench_receipt r = {0};
    struct bench_plan plan = {.tokens = (uint32_t)v->tokens,
                              .reps = (uint32_t)v->reps,
                              .seed = (uint64_t)v->seed,
                              .alone = v->alone,
                              .serial = v->serial,
                              .prompts = &prompts};
    int st = bench_plan_levels(&plan, v->levels, e);
    if (!st) st = check_key(v->key, e);
    if (!st) st = httpc_address_parse(&address, url, e);
    if (!st) st = read_prompts(v, &prompts, &cold, &r, e);
    if (!st && *v->json) st = check_writable(v->json, e);
    *ret_bad_use = st != ST_OK;
    if (st) goto out;
    plan.cold = cold.count ? &cold : NULL;
    set_run(&r, v, url);
    struct bench_target target = {&address, v->key, (uint64_t)(v->stall_s * 1000)};
    st = measure(v, &plan, &target, &r, e);
    *ret_equal = !st && all_equal(&r);
out:
    bench_receipt_fini(&r);
    bench_prompts_fini(&cold);
    bench_prompts_fini(&prompts);
    httpc_address_fini(&address);
    return st;
}

static int run_concurrent(const struct values *v, const char *url) {
    struct err e = {0};
    bool equal = false, bad_use = false;
    int st = concurrent(v, url, &equal, &bad_use, &e);
    if (st) fprintf(stderr, "railyard bench concurrent: %s\n", e.msg);
    return bad_use ? 2 : equal ? 0 : 1;
}

/* ---- compare ---- */

static int run_compare(const char *path_a, const char *path_b) {
    struct err e = {0};
    struct bench_receipt a = {0}, b = {0};
    struct bench_comparison c = {0};
    int st = bench_receipt_load(&a, path_a, &e);
    if (!st) st = bench_receipt_load(&b, path_b, &e);
    if (!st) st = bench_compare(&c, &a, &b, &e);
    if (!st) bench_comparison_print(&c, &a, &b, stdout);
    if (st) fprintf(stderr, "railyard bench compare: %s\n", e.msg);
    int status = st ? 2 : c.unequal || c.failed ? 1 : 0;
    bench_comparison_fini(&c);
    bench_receipt_fini(&a);
    bench_receipt_fini(&b);
    return status;
}

/* ---- which ---- */

static int run_engine(int argc, char **argv) {
    char **args = mem_calloc((size_t)argc + 2, sizeof *args);
    args[0] = (char[]){"bench"};
    memcpy(args + 1, argv, (size_t)argc * sizeof *argv);
    int status = cmd_exec_worker(argc + 1, args);
    free(args);
    return status;
}

int cmd_bench(int argc, char **argv) {
    struct values v = {0};
    struct settings s;
    struct err e = {0};
    if (argc > 0 && !strcmp(argv[0], "engine")) return run_engine(argc, argv);
    signal(SIGPIPE, SIG_IGN); // a server that hangs up is a failed reply
    settings_init(&s, table, sizeof table / sizeof *table, &v);
    const char **args = mem_calloc((size_t)argc + 1, sizeof *args);
    int n = 0, status = 2;
    bool help = false;
    for (int i = 0; i < argc; i++) help |= !strcmp(argv[i], "--help");
    int st = help ? ST_OK : settings_parse(&s, argc, argv, args, &n, &e);
    if (help)
        status = usage(&s, stdout) & 0;
    else if (st)
        fprintf(stderr, "railyard bench: %s\n", e.msg);
    else if (n == 2 && !strcmp(args[0], "concurrent"))
        status = run_concurrent(&v, args[1]);
    else if (n == 3 && !strcmp(args[0], "compare"))
        status = run_compare(args[1], args[2]);
    else
        usage(&s, stderr);
    free(args);
    settings_fini(&s);
    return status;
}
