/* frame: the messages between router and worker: layout, limits, versions, encode and decode.
 *
 * A frame is one message holding one msgpack array [type, generation, field, ...]. docs: proto/frame.md has the
 * layout of each and the state diagram of a worker's life. Encoders append to a strbuf; decoders take untrusted
 * bytes, check them against the limits below before anything is unpacked, and allocate in the caller's arena.
 * Ids travel as msgpack bin, four little-endian bytes each. No nng in here. Any thread.
 *
 * Two sockets carry them. The lobby (a unix stream, one path known to all: u32 length, frame) takes HELLO and answers
 * WELCOME or FAIL. WELCOME names a socket made for this one incarnation of the worker; all else goes over that.
 * `generation` counts the incarnations of a rank (1, 2, ...): a frame of another generation is dropped.
 * A stream is named by (id, epoch): the id is a slot of the router's, the epoch counts that slot's users. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct err;
struct strbuf;

// What each version changed: proto/frame.md, "Versions".
enum { FRAME_VERSION_MIN = 2, FRAME_VERSION_MAX = 2 };

enum frame_type {
    FRAME_HELLO =
        1, // worker -> lobby: who I am, what I speak; says itself as soon as the process runs
    FRAME_WELCOME, // lobby -> worker: rank, generation, epoch of the router, your own socket
    FRAME_VOCAB, // router -> worker: what it needs to know of the vocabulary; before the first SUBMIT
    FRAME_SUBMIT, // router -> worker: one stream
    FRAME_CANCEL, // router -> worker: these streams are not wanted any more
    FRAME_TOKENS, // worker -> router: one round, all its streams
    FRAME_DONE,   // worker -> router: a stream has ended; usage and timings
    FRAME_FAIL, // either way: a stream (or, without one, the whole exchange) cannot go on, and why
    FRAME_STATUS,  // worker -> router: state, room, progress; on change and once a second
    FRAME_DRAIN,   // router -> worker: take no more; or go on again
    FRAME_GOODBYE, // either way: I am leaving now
    FRAME_PING,    // either way
    FRAME_PONG,    // answer to PING, its numbers given back
    FRAME_TYPE_END,
};

enum {
    FRAME_BYTES_MAX = 8 << 20, // of a whole frame; also the receive limit of every connection
    FRAME_LOBBY_BYTES_MAX = 64 << 10, // of a frame to or from the lobby
    FRAME_DEPTH_MAX = 8,              // containers within containers
    FRAME_OBJECTS_MAX = 1 << 20,      // msgpack objects in one frame
    FRAME_TEXT_BYTES_MAX = 4096,      // of any one string
    FRAME_STREAMS_MAX = 4096,         // entries of one TOKENS or CANCEL
    FRAME_PROMPT_IDS_MAX = 1 << 20,   // prompt ids + given ids of one SUBMIT
    FRAME_ROUND_IDS_MAX = 4096,       // ids of one stream in one TOKENS
    FRAME_STOP_IDS_MAX = 64,
    FRAME_BIAS_MAX = 1025,   // a client may name 1024, the router one more
    FRAME_RANGES_MAX = 4096, // of VOCAB's ids in use
    FRAME_TOP_LOGPROBS_MAX = 20,
    FRAME_MEMORY_MAX = 32,     // parts of a worker's memory, of STATUS
    FRAME_PREFIXES_MAX = 1024, // of STATUS's kept and evicted prefixes
    FRAME_DRAFT_KINDS = 5,     // copy, mtp, dflash, dflash2, tree
};

struct
    frame_ids { // points into the decoded bytes or the caller's list; not necessarily aligned: see frame_id_at
    const uint8_t *le; // count * 4 bytes
    uint32_t count;
};
const char *frame_draft_kind(uint32_t kind); // "copy", "mtp", ..
uint32_t frame_id_at(const struct frame_ids *l, uint32_t i);

struct frame_stream {
    uint32_t id, epoch; // id 0 is no stream
};

// Two workers with equal fingerprints give equal bits; a stream moves only between such. Strings, "" when unknown yet.
struct frame_fingerprint {
    const char *build;      // version and commit
    const char *checkpoint; // digest of config and weights
    const char *device;     // GPU model name, or "cpu"
    const char *kv;         // KV type and scale rule
    const char *rope;       // rope settings in effect
};

struct frame_hello {
    uint32_t version_min, version_max;
    int32_t rank; // wanted; -1: the lowest free one
    uint32_t pid;
    bool supervised; // started by this router
    // What the router gave the process it started. One started by hand makes up its own: it tells a process that
    // says HELLO again from another one.
    const char *token;
    const char *name;                          // host-unique name for people, may be ""
    const char *model;                         // the checkpoint's folder name
    const char *gpu_name, *gpu_uuid, *gpu_pci; // "" on the CPU
    struct frame_fingerprint fingerprint;
};

struct frame_welcome {
    uint32_t version; // the one spoken from now on
    uint32_t rank;
    uint32_t generation;
    uint64_t
        router_epoch; // of this router process; a worker that dials again and sees another knows its streams are gone
    const char *path;  // url of the worker's own socket, ipc://PATH
    double progress_s; // how long work may stand still before the router calls the worker hung
};

struct frame_range {
    uint32_t first, count;
};

struct frame_vocab {
    uint32_t size;            // padded rows of the head
    struct frame_range *used; // ids that stand for a token, ascending, not touching
    uint32_t used_count;
    struct frame_ids stop;           // ids that end a reply unless ignored
    struct frame_ids special;        // ids that plain decoding skips
    int64_t think_open, think_close; // -1: none
    int64_t tool_open;               // -1: none
};

// Sampling as design.md section 5 and http_api.md section 7.1 say; all resolved, no defaults left.
struct frame_sampling {
    double temperature; // 0: arg max
    uint32_t top_k;     // 0: off
    double top_p, min_p;
    double presence, frequency, repetition;
    uint64_t seed;
    const uint32_t *bias_ids; // bias_count
    const float *bias;        // -100 forbids
    uint32_t bias_count;
};

struct frame_submit {
    struct frame_stream stream;
    const char *request_id; // for the worker's log
    const char *trace;      // traceparent, "" when none
    struct frame_ids prompt;
    struct frame_ids given; // ids already generated and kept: the reply goes on behind them
    struct frame_sampling sampling;
    uint32_t max_tokens; // ids to generate in all, the given ones counted; >= 1
    uint32_t min_tokens;
    struct frame_ids stop; // besides VOCAB's
    bool ignore_eos;       // VOCAB's stop ids are ordinary tokens
    bool draft;
    bool logits_hash;     // keep the running hash of the logits' bits
    int32_t top_logprobs; // -1: no logprobs
    int64_t think_budget; // -1: none
    bool in_thought;      // the prompt ends inside a thought
    uint64_t prefix_salt; // prefixes are shared only between equal salts
    int32_t priority;
};

struct frame_cancel {
    const struct frame_stream *streams;
    uint32_t count;
};

struct frame_logprob {
    uint32_t id;
    float logprob;
};

struct frame_logprobs { // of one token: the one drawn, then the asked number of best ones
    float logprob;
    const struct frame_logprob *top;
    uint32_t top_count;
};

struct frame_tokens_entry {
    struct frame_stream stream;
    uint32_t first; // index of ids[0] among all generated ids of the stream (given ones counted)
    struct frame_ids ids;                  // may be empty: then only `filled` is news
    uint32_t filled;                       // prompt rows whose state exists, kept ones counted
    const struct frame_logprobs *logprobs; // per id, or NULL
};

struct frame_tokens {
    uint64_t round;
    uint32_t round_us;
    uint32_t rows; // of the forward, all streams
    const struct frame_tokens_entry *entries;
    uint32_t count;
};

enum frame_finish {
    FRAME_FINISH_STOP = 1,  // a stop id; stop_id says which
    FRAME_FINISH_LENGTH,    // max_tokens or the window
    FRAME_FINISH_CANCELLED, // answer to CANCEL: nothing of this stream comes after
    FRAME_FINISH_END,
};

struct frame_done {
    struct frame_stream stream;
    enum frame_finish finish;
    int64_t stop_id; // -1 when it was no stop id
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t queue_us, prefill_us, decode_us; // in this worker
    uint64_t rounds;
    uint64_t drafted[FRAME_DRAFT_KINDS], accepted[FRAME_DRAFT_KINDS];
    uint64_t logits_hash;  // 0 when not asked for
    uint64_t draft_rounds; // of rounds: those that checked drafts
};

enum frame_fail_code {
    FRAME_FAIL_FULL =
        1,              // no room after all: the router queues it again. HELLO: no rank is free now
    FRAME_FAIL_INVALID, // the request breaks a rule the router should have checked
    FRAME_FAIL_UNSUPPORTED, // this engine or checkpoint cannot do it
    FRAME_FAIL_TOO_LONG,
    FRAME_FAIL_DEVICE,
    FRAME_FAIL_INTERNAL,
    FRAME_FAIL_VERSION, // HELLO: no version in common
    FRAME_FAIL_REFUSED, // HELLO: never: no such rank, another model
    FRAME_FAIL_CODE_END,
};

struct frame_fail {
    struct frame_stream stream; // id 0: not about one stream
    enum frame_fail_code code;
    const char *message;
};

enum frame_state {
    FRAME_STATE_LOADING = 1,
    FRAME_STATE_READY,
    FRAME_STATE_DRAINING,
    FRAME_STATE_DRAINED,
    FRAME_STATE_FAILED,
    FRAME_STATE_END,
};

struct frame_prefix {
    uint64_t digest; // of salt and ids
    uint32_t tokens;
};

struct frame_memory { // a part of a worker's memory
    const char *name;
    uint64_t bytes;
};

struct frame_status {
    enum frame_state state;
    const char *reason;   // for failed; "" otherwise
    double load_fraction; // 0..1 while loading
    uint64_t
        progress; // grows with every committed id and filled row; standing still with work pending = hung
    uint32_t streams_running, streams_max;
    uint32_t room; // SUBMITs the worker would take now
    uint32_t queue_requests;
    uint64_t queue_tokens;
    uint32_t context_max; // ids of one stream, prompt and reply
    uint32_t vocab_size;
    uint32_t kv_blocks_used, kv_blocks_total, kv_block_tokens;
    uint64_t kept_prefix_tokens;
    double fill_tokens_per_s;               // measured; 0 before the first prompt
    double round_ms;                        // smoothed
    uint64_t rounds, tokens, prompt_tokens; // since the start
    struct frame_fingerprint fingerprint;   // whole once ready
    const struct frame_prefix *kept;        // prefixes newly kept since the last STATUS
    uint32_t kept_count;
    const struct frame_prefix *evicted; // and no longer kept
    uint32_t evicted_count;
    const char *embedding; // where the embedding's rows are and why; "" before it is loaded
    const struct frame_memory *memory; // every part, pinned host memory and what is left included
    uint32_t memory_count;
};

enum frame_drain_mode {
    FRAME_DRAIN_FINISH = 1, // take no more, finish what runs
    FRAME_DRAIN_RESUME,     // take requests again
    FRAME_DRAIN_EXIT,       // as FINISH, then say GOODBYE and end
    FRAME_DRAIN_END,
};

struct frame_drain {
    enum frame_drain_mode mode;
    double timeout_s;
};

struct frame_goodbye {
    const char *reason;
};

struct frame_ping {
    uint64_t seq;
    uint64_t time_us; // the sender's clock, given back as it came
};

struct frame {
    enum frame_type type;
    uint32_t generation; // 0 in the lobby
    union {
        struct frame_hello hello;
        struct frame_welcome welcome;
        struct frame_vocab vocab;
        struct frame_submit submit;
        struct frame_cancel cancel;
        struct frame_tokens tokens;
        struct frame_done done;
        struct frame_fail fail;
        struct frame_status status;
        struct frame_drain drain;
        struct frame_goodbye goodbye;
        struct frame_ping ping; // PING and PONG
    };
};

// Appends one frame. The caller keeps to the limits (asserted); ids are copied, bytes of a text that are no UTF-8 go
// as '?'. ST_OK always but for a frame over FRAME_BYTES_MAX or FRAME_OBJECTS_MAX, which is ST_FULL and leaves out as
// it was.
int frame_encode(struct strbuf *out, const struct frame *f, struct err *e);
// Reads exactly one frame of len bytes. Strings and id lists of *ret point into bytes or live in a. An unknown type
// is ST_UNSUPPORTED (skip it); anything else wrong is ST_CORRUPT with what was wanted and found (drop the peer).
// Fields behind the known ones are ignored, so that a later minor addition does not break an older peer.
int frame_decode(struct frame *ret, const uint8_t *bytes, size_t len, struct arena *a,
                 struct err *e);
const char *frame_type_name(enum frame_type t);
const char *frame_state_name(enum frame_state s);
const char *frame_fail_name(enum frame_fail_code c);
// ids as frame_encode wants them: little-endian words of the host's list (no copy on a little-endian host).
struct frame_ids frame_ids_of(const uint32_t *v, size_t count, struct arena *a);
// The highest version both speak, or 0.
uint32_t frame_version_pick(uint32_t peer_min, uint32_t peer_max);
