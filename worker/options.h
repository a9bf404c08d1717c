/* options: the worker's settings: one table for flags, the optional file, --help and the list at start. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/settings.h"

struct err;
struct engine_config;

struct options {
    // Where it serves.
    char *lobby, *run_dir, *name, *alive;
    char *token; // RAILYARD_TOKEN of the environment, from the router that started us; "": none did
    int64_t rank;
    // What it runs.
    char *backend, *kv, *fault, *embedding, *scratch, *graphs, *drafter, *draft_kinds, *draft_vocab,
        *costs;
    bool nan_fill;
    int64_t device, context, streams, threads, chunk, round_rows, draft_rows, drafter_quantize_min;
    double memory_fraction;
    // Subcommands.
    char *out, *write_costs, *measure, *json;
    bool plan, plan_unified, profile;
    double room_gib;
    int64_t plan_sm;
    // Itself.
    char *log_level;
    bool list_devices, help, version;
    bool check, kind; // inspect

    struct settings settings;
    const char *model; // the folder, an argument; NULL: none was given
    const char **args;
    int args_count;
};

// argv without the program's name. On failure nothing is to be given back. ST_INVAL names the flag, wanted and found.
int options_init(struct options *o, int argc, char **argv, struct err *e);
void options_fini(struct options *o);
void options_help(void);
void options_log(const struct options *o); // what differs from the defaults, one line
uint32_t
options_device(const struct options *o); // the GPU's number, or what it is the remainder of
void options_engine(const struct options *o, struct engine_config *ret);
// The lobby's nng url: --lobby (a path will do), else lobby.sock in run.dir or where routers put it. The caller frees.
char *options_lobby(const struct options *o);
// The last part of the model's path.
char *options_model_name(const struct options *o);
