/* main: railyard-worker: which subcommand, with which settings. */
#include "common/err.h"
#include "common/log.h"
#include "common/version.h"
#include "proto/exit_code.h"
#include "worker/cmd.h"
#include "worker/options.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

// "railyard" where that program called this one.
static const char *own_name(void) {
    return program_invocation_short_name;
}

static void print_usage(void) {
    static const struct {
        const char *words, *help;
    } ways[] = {
        {"worker MODEL [flags]", "serve the router of --lobby"},
        {"logits MODEL --out=F.npy", "a JSON array of ids on stdin to logits"},
        {"inspect MODEL", "what the checkpoint holds and what is wrong"},
        {"inspect MODEL --plan --context=N --room-gib=X", "what it would take of a GPU"},
        {"bench engine MODEL", "what rounds cost here"},
        {"--list-devices", "the GPUs, as JSON"},
        {"version", "this build"},
    };
    printf("%s: runs one model on one device for a router\n\n", own_name());
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        printf("  %s %-26s %s\n", own_name(), ways[i].words, ways[i].help);
    printf("\nMODEL is a checkpoint's folder.\n\n");
    options_help();
}

static void mask_signals(int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(how, &set, NULL);
}

struct command {
    const char *name;
    int (*run)(const struct options *o);
    const char *word; // that must follow the name; NULL: none
};

static const struct command commands[] = {
    {"worker", cmd_worker, NULL},
    {"logits", cmd_logits, NULL},
    {"inspect", cmd_inspect, NULL},
    {"bench", cmd_bench, "engine"},
};

static bool is_command(const char *name) {
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (!strcmp(name, commands[i].name)) return true;
    return false;
}

static int usage_error(const char *name, const char *what) {
    char text[128];
    snprintf(text, sizeof text, "%s (--help says how)", what);
    cmd_complain(name, text);
    return EXIT_CODE_USAGE;
}

// The command that the arguments name; *ret_used of them say so. A folder alone means worker.
static const struct command *find_command(const struct options *o, int *ret_used) {
    *ret_used = 0;
    if (o->args_count == 0) return NULL;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        const struct command *c = &commands[i];
        if (strcmp(o->args[0], c->name)) continue;
        bool word = !c->word || (o->args_count > 1 && !strcmp(o->args[1], c->word));
        *ret_used = c->word ? 2 : 1;
        return word ? c : NULL;
    }
    return &commands[0];
}

static int run(struct options *o) {
    enum log_level level = LOG_LEVEL_INFO;
    int used;
    log_level_parse(o->log_level, &level);
    log_init("railyard-worker", level);
    if (o->help) return print_usage(), EXIT_CODE_OK;
    if (o->list_devices) return mask_signals(SIG_UNBLOCK), cmd_list_devices();
    bool version = o->version || (o->args_count == 1 && !strcmp(o->args[0], "version"));
    if (version) return printf("%s (%s)\n", version_string(), version_commit()), EXIT_CODE_OK;
    const struct command *c = find_command(o, &used);
    if (!c) return usage_error("", "wanted worker, logits, inspect or bench engine, and MODEL");
    if (o->args_count != used + 1)
        return usage_error(c->name, "wanted one MODEL, a checkpoint's folder");
    o->model = o->args[used];
    if (c->run != cmd_worker) mask_signals(SIG_UNBLOCK);
    return c->run(o);
}

int main(int argc, char **argv) {
    struct options o;
    struct err e = {0};
    mask_signals(SIG_BLOCK); // a worker hears them in its own time
    if (options_init(&o, argc - 1, argv + 1, &e)) {
        cmd_complain(argc > 1 && is_command(argv[1]) ? argv[1] : "", e.msg);
        return EXIT_CODE_USAGE;
    }
    int code = run(&o);
    options_fini(&o);
    return code;
}
