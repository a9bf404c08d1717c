/* cmd_worker: what railyard leaves to the worker program beside it. Before any thread starts. */
#include "common/err.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "proto/exit_code.h"
#include "router/cmd.h"
#include "router/config.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// A worker hears them in its own time, and until then they must not end it.
static void hold_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

int cmd_exec_worker(int argc, char **argv) {
    char *program = config_worker_program();
    if (!program) {
        fprintf(stderr, "railyard: cannot find out where this program is: no /proc\n");
        return 1;
    }
    const char **args = mem_calloc((size_t)argc + 2, sizeof *args);
    args[0] = "railyard"; // how its messages are to name it: as it was called
    if (!strcmp(argv[0], "worker")) hold_signals();
    memcpy(args + 1, argv, (size_t)argc * sizeof *args);
    execv(program, (char **)(uintptr_t)args);
    fprintf(stderr, "railyard: cannot run '%s': %s\n", program, strerror(errno));
    free(args);
    free(program);
    return 1;
}

static int read_all(int fd, struct strbuf *out) {
    char chunk[4096];
    ssize_t n;
    while ((n = read(fd, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return ST_IO;
        strbuf_add(out, chunk, (size_t)n);
    }
    return ST_OK;
}

// Runs a program, argv[0], and takes what it prints; *ret_code is its exit code.
static int run_program(char *const *argv, struct strbuf *out, int *ret_code, struct err *e) {
    int fds[2], rc, status = 0;
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC)) return err_errno(e, "pipe");
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr; // not of our group: Ctrl-C is for us to answer
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
    rc = posix_spawn(&pid, argv[0], &actions, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    int st =
        rc ? (int)err_set(e, ST_IO, "run '%s': %s", argv[0], strerror(rc)) : read_all(fds[0], out);
    close(fds[0]);
    if (!rc && (waitpid(pid, &status, 0) < 0 || !WIFEXITED(status)))
        st = err_set(e, ST_IO, "'%s %s' was killed", argv[0], argv[1]);
    *ret_code = WEXITSTATUS(status);
    return st;
}

// The worker program with up to three arguments.
static int ask_worker(const char *const words[3], struct strbuf *out, int *ret_code,
                      struct err *e) {
    char *program = config_worker_program();
    if (!program) return err_set(e, ST_IO, "cannot find out where this program is: no /proc");
    char *argv[] = {program, (char *)words[0], (char *)words[1], (char *)words[2], NULL};
    int st = run_program(argv, out, ret_code, e);
    free(program);
    return st;
}

bool cmd_is_drafter(const char *dir) {
    struct strbuf out = {0};
    struct err e = {0};
    int code = 0, st = ask_worker((const char *[3]){"inspect", "--kind", dir}, &out, &code, &e);
    bool is = !st && !code && !strcmp(strbuf_str(&out), "drafter\n");
    strbuf_fini(&out);
    return is;
}

int cmd_check_kind(const char *model, struct err *e) {
    if (!cmd_is_drafter(model)) return ST_OK;
    return err_set(e, ST_CORRUPT,
                   "wanted a model, found '%s', a drafter, which goes beside one: --drafter",
                   model);
}

int cmd_check_model(const struct config *c, struct err *e) {
    struct strbuf out = {0};
    int code = 0, st = cmd_check_kind(c->model, e);
    if (st) return st;
    char *program = config_worker_program();
    if (!program) return err_set(e, ST_IO, "cannot find out where this program is: no /proc");
    char **argv = config_check_argv(c, program);
    st = run_program(argv, &out, &code, e);
    size_t len = strcspn(strbuf_str(&out), "\n");
    if (!st && code)
        st = err_set(e, code == EXIT_CODE_USAGE ? ST_INVAL : ST_CORRUPT, "%.*s",
                     len ? (int)len : INT_MAX,
                     len ? strbuf_str(&out) : "a worker would refuse these settings");
    strbuf_fini(&out);
    config_free_argv(argv);
    free(program);
    return st;
}

int cmd_count_devices(uint32_t *ret, struct err *e) {
    struct strbuf out = {0};
    json_t *v = NULL;
    int code = 0, st = ask_worker((const char *[3]){"--list-devices"}, &out, &code, e);
    if (!st && code) st = err_set(e, ST_IO, "--list-devices: exit code %d", code);
    if (!st && !(v = json_loadb(strbuf_str(&out), out.len, 0, NULL)))
        st = err_set(e, ST_CORRUPT, "--list-devices: wanted JSON, found %zu other bytes", out.len);
    if (!st) {
        const json_t *list = json_is_array(v) ? v : json_object_get(v, "devices");
        *ret = (uint32_t)json_array_size(list);
    }
    json_decref(v);
    strbuf_fini(&out);
    return st;
}
