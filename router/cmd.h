/* cmd: the subcommands that are not the server itself. Each returns an exit status: 0 fine, 1 it failed, 2 wrong use. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct config;
struct err;

int cmd_serve(int argc, char **argv);    // the router with workers of its own
int cmd_router(int argc, char **argv);   // the router alone; workers join by its lobby
int cmd_tokenize(int argc, char **argv); // JSON strings, one a line, into JSON arrays of ids
int cmd_ctl(int argc, char **argv);      // asks a running router's ops listener
int cmd_inspect(int argc, char **argv); // tokeniser and template, then the worker program's inspect
int cmd_bench(int argc, char **argv);   // measures a running server, compares receipts
// Becomes railyard-worker with these arguments, the subcommand's name first. Returns only when that fails.
int cmd_exec_worker(int argc, char **argv);
// The folder holds no model but a drafter for one, right or not.
bool cmd_is_drafter(const char *dir);
// ST_CORRUPT: it is such a folder.
int cmd_check_kind(const char *model, struct err *e);
// The checkpoint is one that a worker can load, with the settings that are handed on to it: railyard-worker inspect --check
// MODEL. ST_CORRUPT: its message; ST_INVAL: of one about a setting.
int cmd_check_model(const struct config *c, struct err *e);
// GPUs as railyard-worker --list-devices names them.
int cmd_count_devices(uint32_t *ret, struct err *e);
