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

struct ops_config {
    const struct config *config;
    int fd; // an inherited socket, in place of ops.listen; -1: none
    struct metrics *metrics;
    struct snapshots *snapshots;
    struct admin *admin;
    struct keys *keys;
};
int ops_start(struct ops **ret, const struct ops_config *oc, struct err *e);
const char *ops_url(const struct ops *o);
void ops_stop(struct ops *o); // once in a process: its thread sleeps on until the end; NULL is fine
