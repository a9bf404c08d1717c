/* access: the access log: one JSON line at the end of each request. Never a prompt, an output or a key.
 * Nobody waits for a reader: what a pipe does not take is kept up to a bound, then lines are dropped and counted, in a
 * line {"time":...,"dropped":N} or, on stderr, in the log. Loop thread only. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct access_log; // defined in access.c
struct err;
struct http_call;

struct access_facts { // what a generating request adds to its line; zero: nothing
    bool generated;
    bool stream;
    const char *code;          // error code, constant; NULL: none
    const char *finish_reason; // constant; NULL: none
    int32_t worker;            // rank
    uint32_t n;                // choices of each prompt
    uint32_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    double queue_ms, prefill_ms, first_token_ms;
    uint64_t rounds, drafted, accepted;
    uint32_t resumed;      // times
    char id[48];           // ours, as in the reply
    char token_sha256[65]; // "": the reply was not finished
};

// where: "stderr", "off" or a file to append to.
int access_open(struct access_log **ret, const char *where, struct err *e);
void access_reopen(struct access_log *l); // the file may have been moved away; a failure is logged
void access_close(struct access_log *l);  // NULL is fine
void access_write(struct access_log *l, const struct http_call *c, const char *model);
void access_flush(struct access_log *l); // from the tick: what waits for a slow reader
