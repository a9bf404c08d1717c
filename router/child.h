/* child: one worker process of the router: started, watched, told to end. Loop thread only. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct err;

enum { CHILD_TOKEN_BYTES = 33 }; // 16 random bytes as hex digits, with the NUL

struct child { // zero-initialised: no process
    uv_process_t process;
    bool running;                  // from child_start until on_exit
    bool closing;                  // its handle is being closed
    char token[CHILD_TOKEN_BYTES]; // what the process shows in its HELLO
    void (*on_exit)(void *arg, int64_t code, int signal);
    void (*on_closed)(void *arg); // after on_exit, when the struct may go
    void *arg;
};

// Starts argv[0] (found through PATH) with --rank and --lobby behind argv and its token in RAILYARD_TOKEN; its output
// goes to our stderr. It ends with us however we end. The struct stays put until on_exit. ST_IO: it could not be started.
int child_start(struct child *c, uv_loop_t *loop, char *const *argv, uint32_t rank,
                const char *lobby_url, struct err *e);
void child_kill(struct child *c, int signal); // nothing when none runs
