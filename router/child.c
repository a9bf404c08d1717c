/* child: see child.h. The worker asks the kernel for a SIGKILL at its parent's death (PR_SET_PDEATHSIG) by itself,
 * as soon as it sees the token: between fork and exec there is no room for calls of ours. */
#include "router/child.h"
#include "common/err.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static int make_token(char ret[CHILD_TOKEN_BYTES], struct err *e) {
    uint8_t raw[(CHILD_TOKEN_BYTES - 1) / 2];
    if (getrandom(raw, sizeof raw, 0) != sizeof raw) return err_errno(e, "random bytes");
    for (size_t i = 0; i < sizeof raw; i++) snprintf(ret + 2 * i, 3, "%02x", raw[i]);
    return ST_OK;
}

static void on_close(uv_handle_t *h) {
    struct child *c = h->data;
    c->closing = false;
    if (c->on_closed) c->on_closed(c->arg);
}

static void on_exit_cb(uv_process_t *p, int64_t code, int signal) {
    struct child *c = p->data;
    c->running = false;
    c->closing = true;
    uv_close((uv_handle_t *)p, on_close);
    c->on_exit(c->arg, code, signal);
}

// Ours with the token's line in front; the list is to be freed, not its lines. Not a flag: those are for all to see.
static char **make_env(char *token) {
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    char **env = mem_calloc(n + 2, sizeof *env);
    env[kept++] = token;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "RAILYARD_TOKEN=", 15)) env[kept++] = environ[i];
    return env;
}

int child_start(struct child *c, uv_loop_t *loop, char *const *argv, uint32_t rank,
                const char *lobby_url, struct err *e) {
    size_t n = 0;
    while (argv[n]) n++;
    char rank_flag[32], lobby_flag[256];
    int st = make_token(c->token, e);
    if (st) return st;
    snprintf(rank_flag, sizeof rank_flag, "--rank=%u", rank);
    snprintf(lobby_flag, sizeof lobby_flag, "--lobby=%s", lobby_url);
    char **args = mem_calloc(n + 3, sizeof *args);
    memcpy(args, argv, n * sizeof *args);
    args[n] = rank_flag, args[n + 1] = lobby_flag;
    char token[64];
    snprintf(token, sizeof token, "RAILYARD_TOKEN=%s", c->token);
    char **env = make_env(token);
    uv_stdio_container_t stdio[3] = {
        {.flags = UV_IGNORE},
        {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
        {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
    };
    uv_process_options_t o = {.exit_cb = on_exit_cb,
                              .file = args[0],
                              .args = args,
                              .env = env,
                              .stdio_count = 3,
                              .stdio = stdio};
    c->process.data = c;
    int rv = uv_spawn(loop, &c->process, &o);
    free(args);
    free(env);
    c->running = rv == 0;
    if (!rv) return ST_OK;
    c->closing = true; // libuv wants the handle closed even when nothing was started
    uv_close((uv_handle_t *)&c->process, on_close);
    return err_set(e, ST_IO, "start '%s': %s", argv[0], uv_strerror(rv));
}

void child_kill(struct child *c, int signal) {
    if (c->running) uv_process_kill(&c->process, signal);
}
