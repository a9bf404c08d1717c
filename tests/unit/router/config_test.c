/* Settings: what is handed on to workers, and where the sockets live. */
#include "common/err.h"
#include "common/strbuf.h"
#include "router/config.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *arg(const char *s) {
    return (char *)(uintptr_t)s; // settings_parse writes to none
}

TEST(only_what_was_given_is_handed_on_to_workers) {
    struct config c;
    struct err e = {0};
    char *argv[] = {arg("MODEL"), arg("--streams=4"), arg("--api.listen=:0"), arg("--kv=f32")};
    CHECK_OK(config_init(&c, 4, argv, &e), e);
    CHECK_STR(c.model, "MODEL");
    char **w = config_worker_argv(&c, "prog");
    static const char *const wanted[] = {"prog", "worker", "MODEL", "--streams=4", "--kv=f32"};
    for (int i = 0; i < 5; i++) CHECK_STR(w[i], wanted[i]);
    CHECK(w[5] == NULL);
    config_free_argv(w);
    config_fini(&c);
}

static const struct {
    const char *flag, *says;
} refused[] = {
    {"--workers=65", "workers"},
    {"--api.body_bytes_max=10", "api.body_bytes_max"},
    {"--kv=int4", "auto|bf16|fp8|f32"},
    {"--api.listn=x", "did you mean 'api.listen'"},
    {"--port=1", "no setting 'port' (--help lists them)"},
    {"--model.name=", "setting model.name: wanted a name, found ''"},
    {"--model.name=  ", "setting model.name: wanted a name"},
    {"--model.aliases=x,,y", "setting model.aliases: wanted names split by commas, found 'x,,y'"},
    {"--model.aliases=x,", "setting model.aliases: wanted names"},
    {"--model.aliases= ,x", "setting model.aliases: wanted names"},
    {"--stream.keepalive_s=0", "stream.keepalive_s"},
    {"other", "wanted one MODEL"},
};

TEST(a_wrong_setting_is_named) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct config c;
        struct err e = {0};
        char *argv[] = {arg("MODEL"), arg(refused[i].flag)};
        CHECK_EQ(config_init(&c, 2, argv, &e), ST_INVAL);
        CHECK_HAS(e.msg, refused[i].says);
        config_fini(&c);
    }
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "we");
    CHECK(f != NULL);
    fputs(text, f);
    fclose(f);
}

// What a reload may take over it does, in a config of its own: the ops thread may be reading the old one.
TEST(a_reload_makes_another_config_of_what_may_change) {
    char path[] = "/tmp/ry-conf-XXXXXX", flag[64];
    close(mkstemp(path));
    snprintf(flag, sizeof flag, "--config=%s", path);
    write_file(path, "queue.wait_s = 17\nworkers = 0\n");
    char *argv[] = {arg("MODEL"), arg(flag), arg("--drain.settle_s=2")};
    struct config first;
    struct config *next = NULL, *last = NULL;
    struct strbuf changed = {0}, kept = {0};
    struct err e = {0};
    CHECK_OK(config_init(&first, 3, argv, &e), e);
    first.workers = 4; // as the start fills it in
    CHECK_OK(config_reload(&next, &first, &changed, &kept, &e), e);
    CHECK(next == NULL);
    write_file(path, "queue.wait_s = 0.1\nlog.level = debug\ndrain.settle_s = 9\n"
                     "api.listen = :1\nauth.keys = secret\n");
    CHECK_OK(config_reload(&next, &first, &changed, &kept, &e), e);
    CHECK(next != NULL && next->replaced == &first);
    CHECK_STR(strbuf_str(&changed), "queue.wait_s log.level");
    CHECK_STR(strbuf_str(&kept), "api.listen auth.keys");
    CHECK(first.queue_wait_s == 17 && next->queue_wait_s == 0.1 && next->settle_s == 2);
    CHECK_STR(next->log_level, "debug");
    CHECK_STR(next->api_listen, first.api_listen);
    CHECK_EQ(next->workers, 4);
    CHECK_STR(next->model, "MODEL");
    write_file(path, "queue.wait_s = soon\n");
    CHECK_EQ(config_reload(&last, next, &changed, &kept, &e), ST_INVAL);
    CHECK_HAS(e.msg, "queue.wait_s");
    unlink(path);
    CHECK_EQ(config_reload(&last, next, &changed, &kept, &e), ST_NOT_FOUND);
    CHECK(last == NULL);
    config_free_reloaded(next);
    config_fini(&first);
    strbuf_fini(&changed);
    strbuf_fini(&kept);
}

static int make(const char *path, struct config *c, bool *temporary, struct err *e) {
    char flag[256];
    snprintf(flag, sizeof flag, "--run.dir=%s", path);
    char *argv[] = {flag};
    CHECK_OK(config_init(c, 1, argv, e), *e);
    return config_make_run_dir(c, temporary, e);
}

TEST(the_run_dir_is_made_for_its_owner_alone) {
    struct config c;
    struct err e = {0};
    bool temporary = true;
    char path[200];
    struct stat sb;
    snprintf(path, sizeof path, "%s/run", test_temp_dir());
    for (int again = 0; again < 2; again++) {
        CHECK_OK(make(path, &c, &temporary, &e), e);
        CHECK(!temporary);
        CHECK_EQ(stat(path, &sb), 0);
        CHECK_EQ(sb.st_mode & 0777, 0700);
        config_fini(&c);
        chmod(path, 0755); // an old one that was open to others is closed
    }
    rmdir(path);
}

TEST(a_run_dir_that_is_too_long_or_no_folder_is_refused) {
    struct config c;
    struct err e = {0};
    bool temporary;
    char path[200];
    memset(path, 'x', sizeof path);
    memcpy(path, "/tmp/", 5);
    path[110] = '\0';
    CHECK_EQ(make(path, &c, &temporary, &e), ST_INVAL);
    CHECK_HAS(e.msg, "at most");
    config_fini(&c);
    snprintf(path, sizeof path, "%s/file", test_temp_dir());
    FILE *f = fopen(path, "w");
    fclose(f);
    CHECK_EQ(make(path, &c, &temporary, &e), ST_INVAL);
    CHECK_HAS(e.msg, "wanted a folder");
    config_fini(&c);
    unlink(path);
}
