/* main: railyard's subcommands. */
#include "common/log.h"
#include "common/version.h"
#include "router/cmd.h"

#include <stdio.h>
#include <string.h>

static int refuse_arguments(const char *name, char **argv) {
    fprintf(stderr, "railyard %s: wanted nothing behind it, found '%.64s'\n", name, argv[0]);
    return 2;
}

static int cmd_version(int argc, char **argv) {
    if (argc) return refuse_arguments("version", argv);
    printf("railyard %s (%s)\n", version_string(), version_commit());
    return 0;
}

static int cmd_help(int argc, char **argv);

static const struct {
    const char *name;
    int (*run)(int argc, char **argv); // what stands behind the name
    const char *help;
} commands[] = {
    {"serve", cmd_serve, "MODEL: serve a model: the router and its workers"},
    {"router", cmd_router, "MODEL: the router alone; workers join it"},
    {"worker", NULL, "MODEL: a worker for a router started apart"},
    {"ctl", cmd_ctl, "drain, restart, list: talk to a running router"},
    {"tokenize", cmd_tokenize, "DIR: JSON strings on stdin into ids"},
    {"inspect", cmd_inspect, "MODEL: what is in a checkpoint"},
    {"logits", NULL, "MODEL: the forward alone"},
    {"bench", cmd_bench, "concurrent URL, compare A B, engine MODEL: measure and compare"},
    {"version", cmd_version, "this build"},
    {"help", cmd_help, "this text; railyard serve --help lists the settings"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static int cmd_help(int argc, char **argv) {
    if (argc) return refuse_arguments("help", argv);
    printf(
        "railyard serves Qwen3.5-family language models over an OpenAI-compatible HTTP API.\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        printf("  railyard %-9s %s\n", commands[i].name, commands[i].help);
    return 0;
}

int main(int argc, char **argv) {
    log_init("railyard", LOG_LEVEL_INFO);
    const char *name = argc > 1 ? argv[1] : "help";
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) name = "help";
    if (!strcmp(name, "--version")) name = "version";
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name)) continue;
        // A command without a function here is the worker program's.
        return commands[i].run ? commands[i].run(argc > 2 ? argc - 2 : 0, argv + 2)
                               : cmd_exec_worker(argc - 1, argv + 1);
    }
    fprintf(stderr, "railyard: no command '%.64s'; railyard help lists them\n", name);
    return 2;
}
