/* link: the worker's side of its life with a router: HELLO to GOODBYE, and again. The link thread, which is the main one.
 *
 * A worker that a router started ends with it. One started by hand keeps its model when its router goes and dials the
 * lobby until there is one again. PING is answered here, so a long round delays no PONG. */
#pragma once
#include <stdbool.h>

#include "proto/exit_code.h"

struct frame_hello;
struct runner;

struct link_config {
    const char *lobby;               // nng url
    const struct frame_hello *hello; // its fingerprint is completed once the engine is loaded
    struct runner *runner;
    const char *alive;            // service.h; "": none
    int signal_fd;                // a signalfd of SIGTERM and SIGINT
    void (*on_loaded)(void *arg); // once, when the engine has been loaded: the start-up report
    void *arg;
};

enum exit_code link_run(const struct link_config *c);
