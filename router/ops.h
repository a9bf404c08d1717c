/* ops: the ops listener: health, metrics and administration on a loop and thread of their own, so that they answer
 * however busy or stuck the request loop is. Shares nothing with it but the snapshots, the metrics' atomics and the
 * inboxes of admin.h. */
#pragma once

struct admin;
struct config;
struct err;
struct keys;
struct metrics;
struct ops; // defined in ops.c
struct snapshots;

int ops_start(struct ops **ret, const struct config *c, struct metrics *m, struct snapshots *s,
              struct admin *admin, struct keys *keys, struct err *e);
const char *ops_url(const struct ops *o);
void ops_stop(struct ops *o); // once in a process: its thread sleeps on until the end; NULL is fine
