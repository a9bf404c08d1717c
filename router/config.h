/* config: every setting of the router, in one table: flags, lines of --config, --help and the values at start
 * (railyard serve --help). A struct config is constant once the threads run: what is read again makes another one. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/settings.h"

struct err;
struct strbuf;

struct config {
    char *api_listen, *ops_listen;
    int64_t worker_ports; // 0: off
    char *tls_cert, *tls_key, *cors_origins, *trusted_proxies;
    char *keys_file, *keys;
    bool metrics_auth;
    int64_t head_bytes_max, head_fields_max, uri_bytes_max;
    int64_t body_bytes_max, bodies_bytes_max, body_rate_min;
    double header_s, body_s, body_rate_after_s, keepalive_s, write_stall_s;
    int64_t connections_max, h2_streams_max, h2_resets_max;
    bool half_close;

    int64_t queue_requests_max; // 0: 64 per worker
    int64_t queue_tokens_max;
    double queue_wait_s;
    char *overload_status;
    bool use_client_timeout;
    double wait_ready_s, resume_s;

    double request_s;
    int64_t output_default; // 0: the room left
    int64_t tokenize_bytes_max;

    double first_byte_s, stream_keepalive_s;
    int64_t stream_buffer_bytes_max;
    bool done_after_error;

    double progress_s, start_s;
    char *start_notify;
    int64_t ready_workers_min;
    double settle_s, drain_s;
    double loop_stall_s;

    char *sampling_defaults;
    bool reply_extras, reply_headers;
    double whitespace_s; // 0: off
    char *reasoning_fields;

    char *run_dir;
    char *model_name, *model_aliases;
    bool plain_control_text;
    char *template_rules, *late_system;
    char *log_level, *access_log;

    int64_t workers; // 0: visible GPUs, at least 1

    // What a worker runs with; handed on when given.
    char *backend, *embedding;
    int64_t context, streams, threads, chunk;
    double memory_fraction;
    char *kv, *drafter, *draft_kinds, *draft_vocab, *costs;
    int64_t draft_rows, drafter_quantize_min;
    char *debug_fault;

    struct settings settings; // the table bound to this struct
    const char *model;        // MODEL of the command line, or NULL
    int argc;                 // as config_init was given them, the caller's
    char **argv;
    struct config *replaced; // by config_reload; NULL: the first one
};

// argv: behind the subcommand's name; stands as long as c. ST_INVAL: one line that names the flag, wanted and found.
int config_init(struct config *c, int argc, char **argv, struct err *e);
void config_fini(struct config *c);
void config_help(const char *subcommand);
// {"name":value,..} of every setting in effect; what is a secret shows as "***".
void config_write_json(const struct config *c, struct strbuf *out);
void config_log(const struct config *c); // every value that is not its default

// Reads the --config file again. Where a setting differs that may change while the router runs (config_help lists them), *ret is
// a new config that has them and keeps the old one, now, as `replaced`; else NULL. Names split by spaces: *ret_changed has
// those, *ret_kept what differs too but changes with a restart alone. ST_INVAL, ST_IO: as config_init, and nothing is made.
int config_reload(struct config **ret, struct config *now, struct strbuf *ret_changed,
                  struct strbuf *ret_kept, struct err *e);
// Frees what config_reload has made, back to the first config, which stays.
void config_free_reloaded(struct config *last);

// Makes run.dir (mode 0700) and puts its path in c->run_dir. *ret_temporary: it is a fresh folder under /tmp that
// config_remove_run_dir takes away.
int config_make_run_dir(struct config *c, bool *ret_temporary, struct err *e);
void config_remove_run_dir(const struct config *c);

// The worker program beside our own. The caller frees. NULL: /proc cannot be read.
char *config_worker_program(void);
// The argument vector of a spawned worker, NULL-terminated: program, "worker", MODEL, the flags to hand on.
char **config_worker_argv(const struct config *c, const char *program);
// Of what says whether such a worker could start: program, "inspect", "--check", MODEL, the same flags.
char **config_check_argv(const struct config *c, const char *program);
void config_free_argv(char **argv);
