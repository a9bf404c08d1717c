/* bench_ask: one streamed chat request of a bench, and what came of it.
 *
 * The reply is read event by event: when ids arrived and how many, the digests, usage and the server's own figures. A
 * reply counts only when it is whole: [DONE], as many ids as asked, token_sha256 equal to the hash of the ids that came. */
#pragma once
#include <jansson.h>
#include <uv.h>

#include "common/strbuf.h"
#include "router/bench.h"
#include "router/bench_stats.h"
#include "router/sse.h"

struct err;
struct httpc;
struct httpc_address;

struct bench_request {
    const json_t *messages;
    enum bench_draw draw;
    bool draft;
    uint64_t seed;
    uint32_t tokens;
    const char
        *salt; // NULL: kept prompts may be used; else nothing may be, and the reply is held to that
};
// The body of the request. The caller frees.
char *bench_ask_body(const struct bench_request *r);
// What fixes a draw besides the seed, as text, for digests: receipts of other settings must not be compared.
const char *bench_ask_settings(void);

struct bench_target {
    const struct httpc_address *address;
    const char *key; // "": none
    uint64_t stall_ms;
};

struct bench_ask {
    // The outcome, when `over`.
    bool over;
    struct bench_reply reply;
    struct bench_arrivals arrivals;
    uint64_t sent_ns; // when the request went out
    // The rest is bench_ask.c's.
    struct bench_list *gaps;
    struct httpc *http;
    struct sse sse;
    struct sha256 *hash;
    struct strbuf refusal;          // body of a reply that is no stream
    uint64_t read_ns;               // the read that is being taken in,
    uint32_t read_ids, read_rounds; // and what it has brought so far
    uint32_t tokens_wanted;
    int status;
    bool must_be_cold, done;
};

// Starts it; run the loop until all is over. gaps takes the times between arrivals. a must not move meanwhile.
void bench_ask_start(struct bench_ask *a, uv_loop_t *loop, const struct bench_target *t,
                     const struct bench_request *r, struct bench_list *gaps);
