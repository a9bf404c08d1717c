/* cmd_serve: railyard serve and railyard router: settings first, then the server. */
#include "common/err.h"
#include "common/log.h"
#include "router/cmd.h"
#include "router/config.h"
#include "router/server.h"

#include <stdio.h>
#include <string.h>

// As many as there are GPUs, and one where there is none.
static void count_workers(struct config *c) {
    struct err e = {0};
    uint32_t gpus = 0;
    bool cpu = !strcmp(c->backend, "cpu");
    if (!cpu && cmd_count_devices(&gpus, &e))
        log_warn("list_devices", "reason=\"%s\" workers=1", e.msg);
    c->workers = gpus < 1 ? 1 : gpus > 64 ? 64 : gpus;
}

static int run(const char *name, int argc, char **argv, bool spawn) {
    server_hold_signals();
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help")) continue;
        config_help(name);
        return 0;
    }
    struct config c;
    struct err e = {0};
    enum log_level level = LOG_LEVEL_INFO;
    int status = 2;
    int st = config_init(&c, argc, argv, &e);
    if (!st && !c.model)
        st =
            err_set(&e, ST_INVAL, "wanted MODEL, a checkpoint's folder (railyard %s --help)", name);
    if (st) {
        fprintf(stderr, "railyard %s: %s\n", name, e.msg);
        goto out;
    }
    log_level_parse(c.log_level, &level);
    log_init("railyard", level);
    st = spawn ? cmd_check_model(&c, &e) : cmd_check_kind(c.model, &e);
    if (st) { // before a worker is started again and again
        fprintf(stderr, "railyard %s: %s\n", name, e.msg);
        status = st == ST_INVAL ? 2 : 1;
        goto out;
    }
    if (c.workers == 0) count_workers(&c);
    if (spawn && c.ready_workers_min > (int64_t)c.workers) // others may be started by hand
        log_warn("ready_later", "ready.workers_min=%d workers=%d reason=\"ready once others join\"",
                 (int)c.ready_workers_min, (int)c.workers);
    status = server_run(&c, spawn);
out:
    config_fini(&c);
    return status;
}

int cmd_serve(int argc, char **argv) {
    return run("serve", argc, argv, true);
}

int cmd_router(int argc, char **argv) {
    return run("router", argc, argv, false);
}
