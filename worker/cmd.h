/* cmd: the worker program's subcommands. Each gets its settings parsed and returns the exit code. Main thread. */
#pragma once

#include <stdbool.h>

struct cuda_device_info;
struct engine_info;
struct options;

int cmd_worker(const struct options *o); // serve a router
int cmd_logits(const struct options *o); // ids on stdin to a .npy of logits
int cmd_inspect(
    const struct options *o); // what a checkpoint holds, and what is wrong with it; loads nothing
int cmd_plan(const struct options *o);  // what a checkpoint would take of a GPU; needs none
int cmd_bench(const struct options *o); // what rounds cost on this machine
int cmd_list_devices(void);             // the GPUs, as JSON

// What ended a subcommand, on stderr, behind the names that it was called by.
void cmd_complain(const char *name, const char *what);

// The GPU that these settings mean. False: none, the CPU.
bool devices_own(const struct options *o, struct cuda_device_info *ret);

// The start-up report: the model, the memory by part, what fits.
void report_loaded(const struct options *o, const struct engine_info *info);
