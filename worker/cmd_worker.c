/* cmd_worker: serves a router: start-up in order, shut-down in reverse. The main thread becomes the link thread. */
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/notify.h"
#include "common/strbuf.h"
#include "common/version.h"
#include "kernels/cuda/devices.h"
#include "proto/frame.h"
#include "worker/cmd.h"
#include "worker/engine/engine.h"
#include "worker/link.h"
#include "worker/lobby_call.h"
#include "worker/options.h"
#include "worker/runner.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct identity { // the strings behind a HELLO
    char *model, *lobby, *build;
    char name[256], token[64];
    struct cuda_device_info gpu; // all empty: none
};

// A process started by hand is told apart from others by random bytes of its own.
static void make_token(char ret[64]) {
    uint8_t raw[16] = {0};
    if (getrandom(raw, sizeof raw, 0) != sizeof raw) memcpy(raw, &(pid_t){getpid()}, sizeof(pid_t));
    for (size_t i = 0; i < sizeof raw; i++) snprintf(ret + 2 * i, 3, "%02x", raw[i]);
}

static void identity_init(struct identity *id, const struct options *o) {
    struct strbuf b = {0};
    *id = (struct identity){0};
    id->model = options_model_name(o);
    id->lobby = options_lobby(o);
    devices_own(o, &id->gpu);
    strbuf_printf(&b, "%s %s", version_string(), version_commit());
    id->build = strbuf_take(&b);
    if (o->name[0])
        snprintf(id->name, sizeof id->name, "%s", o->name);
    else if (gethostname(id->name, sizeof id->name - 1))
        id->name[0] = '\0';
    if (o->token[0])
        snprintf(id->token, sizeof id->token, "%s", o->token);
    else
        make_token(id->token);
}

static void identity_fini(struct identity *id) {
    free(id->model);
    free(id->lobby);
    free(id->build);
}

static struct frame_hello hello_of(const struct identity *id, const struct options *o) {
    return (struct frame_hello){
        .version_min = FRAME_VERSION_MIN,
        .version_max = FRAME_VERSION_MAX,
        .rank = (int32_t)o->rank,
        .pid = (uint32_t)getpid(),
        .supervised = o->token[0] != '\0',
        .token = id->token,
        .name = id->name,
        .model = id->model,
        .gpu_name = id->gpu.name,
        .gpu_uuid = id->gpu.uuid,
        .gpu_pci = id->gpu.pci,
        .fingerprint = {id->build, "", "", "", ""},
    };
}

// Signals come through a descriptor. Before any thread starts, so that all have them blocked.
static int open_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

struct loaded {
    const struct options *o;
    struct runner *runner;
};

static void on_loaded(void *arg) {
    struct loaded *l = arg;
    report_loaded(l->o, runner_info(l->runner));
}

static bool still_loading(struct runner *r) {
    struct runner_status s;
    runner_status(r, &s);
    return s.state == RUNNER_LOADING;
}

int cmd_worker(const struct options *o) {
    struct identity id;
    struct engine_config engine;
    struct err e = {0};
    identity_init(&id, o);
    if (lobby_check(id.lobby, &e)) { // before minutes of loading
        cmd_complain("worker", e.msg);
        identity_fini(&id);
        return EXIT_CODE_USAGE;
    }
    // A worker that a router started ends with it, however the router ends.
    if (o->token[0]) prctl(PR_SET_PDEATHSIG, SIGKILL);
    int signals = open_signals();
    notify_init();
    options_log(o);
    options_engine(o, &engine);
    struct frame_hello hello = hello_of(&id, o);
    struct runner *runner = runner_new(&engine);
    struct loaded loaded = {o, runner};
    struct link_config c = {.lobby = id.lobby,
                            .hello = &hello,
                            .runner = runner,
                            .alive = o->alive,
                            .signal_fd = signals,
                            .on_loaded = on_loaded,
                            .arg = &loaded};
    int code = (int)link_run(&c);
    log_info("exit", "code=%d", code);
    if (still_loading(runner)) _exit(code); // reading a checkpoint cannot be called off
    runner_free(runner);
    identity_fini(&id);
    if (signals >= 0) close(signals);
    return code;
}
