/* engine: one model on one device, driven as a library: submit, step, cancel, read tokens.
 *
 * It knows nothing of nng, frames, text or HTTP. All calls come from one thread, the engine thread; the backend may
 * use threads of its own inside a call. After engine_new nothing on the path of a round allocates.
 *
 * The contract (docs/exactness.md): the tokens and the bits of the logits of a stream are a function of the
 * checkpoint, the backend, its prompt and given ids, its sampling and its seed alone. Neither the other streams, the
 * chunks its prompt is filled in, the thread count, nor an interruption and replay (given ids) changes one bit. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "kernels/sample/sample.h"

struct cuda_driver;
struct drafter;
struct err;
struct engine; // defined in engine.c

struct engine_config {
    const char *model_dir;
    const char *backend;   // "auto" (a GPU where there is one), "cpu" or "cuda"
    uint32_t device;       // the GPU's number among those the driver shows
    bool device_wraps;     // modulo their count
    const char *embedding; // "auto", "card" or "host": placement.h
    uint32_t context_max;  // ids of one stream; 0: what the checkpoint allows and memory holds
    uint32_t streams_max;  // 0: chosen from the memory
    uint32_t threads;      // of the CPU backend; 0: one per CPU this process may use
    uint32_t
        chunk_tokens; // prompt rows of one stream filled in one round; 0: default. Never changes a bit
    uint32_t round_rows_max; // rows of one forward; 0: default
    double memory_fraction;  // of what is free, for KV and states; 0: default
    const char *
        drafter; // NULL or "none"; "auto": copies, and the checkpoint's MTP head where there is one; a folder
    const char *draft_kinds; // NULL or "all"; else those allowed, of copy,mtp,dflash,dflash2
    uint32_t
        draft_rows;    // of one stream's window in a round, 2 .. ENGINE_WINDOW_ROWS_MAX; 0: default
    const char *costs; // file (costs.h); NULL or "": what is built in
    uint64_t drafter_quantize_min; // see drafter.h
    const char *draft_vocab;       // "auto" (or NULL), "all" or spans: draft_vocab.h
    const char *kv;                // "auto", "f32", "bf16", "fp8" (e4m3)
    void (*on_load)(void *arg, uint64_t done_bytes,
                    uint64_t total_bytes); // progress, from 0 to the total; may be NULL
    void *on_load_arg;
    bool graphs_off; // on a GPU each operation of a round is launched by itself: for comparison
    bool scratch_disjoint; // mixers and MLP have rows of their own: for comparison
    bool spoil_dead;       // debug: dead rows and fresh memory are NaN
    // For tests: the driver to use instead of the machine's; and a look at the table before it is used, which may lack
    // operations then.
    const struct cuda_driver *driver;
    void (*on_ops)(void *arg, struct ops *o);
    void *on_ops_arg;
    const struct drafter
        *own_drafter; // instead of the one that `drafter`, which is not none, would open; copied
    // Planted faults for the tests that prove the equality suites can fail; 0: none.
    uint32_t fault;
};

enum engine_fault {
    ENGINE_FAULT_NONE,
    ENGINE_FAULT_ULP, // one ulp in one logit of one row, only when rows of several streams share a round
    ENGINE_FAULT_STALE_CONV, // one DeltaNet layer reads a conv row of the chunk before last at a chunk border
    ENGINE_FAULT_SHORT_S, // a commit of windows passes one row too few to one DeltaNet layer's matrices
    ENGINE_FAULT_SHORT_CONV, // ... to its convolution
    ENGINE_FAULT_WINDOW_ROPE, // rows of a window behind its first are rotated by one position too many
    ENGINE_FAULT_LOST_TAP, // of each prompt chunk but the last the drafter gets a last row of zeros
    ENGINE_FAULT_LOST_BRANCH, // a branch that is kept leaves its keys behind
    ENGINE_FAULT_END,
};

// Bounds of one request, and of a window.
enum {
    ENGINE_TOP_LOGPROBS_MAX = 20, // as the OpenAI API has it
    ENGINE_STOP_IDS_MAX = 256,
    ENGINE_WINDOW_ROWS_MAX = 32, // rows of one stream's window; of all in engine_windows
    ENGINE_STREAMS_MAX = 1024,
    ENGINE_ROUND_ROWS_MAX = 8192,
};

// Where a draft came from, as the frames have them.
enum engine_draft {
    ENGINE_DRAFT_COPY,
    ENGINE_DRAFT_MTP,
    ENGINE_DRAFT_DFLASH,
    ENGINE_DRAFT_DFLASH2,
    ENGINE_DRAFT_TREE,
    ENGINE_DRAFT_KINDS
};

struct engine_region { // a part of the device arena, for the start-up report
    const char *name;
    uint64_t bytes;
};

// What a round reads and multiplies of the model at least: the embedding's rows are not, unless they are the head too.
struct engine_work {
    uint64_t bytes, parameters;               // of weights that every row meets
    uint64_t routed_bytes, routed_parameters; // of the routed experts, all of them
    uint32_t experts, experts_per_row;        // 0: none
    uint64_t
        position_macs; // multiply-adds of all layers of attention for a row and a position before it
};

struct engine_info {
    const char *model_type; // "qwen3_5" or "qwen3_5_moe"
    const char *device;     // "cpu", or the GPU's name
    uint32_t vocab_size;    // rows of the head, padding included
    uint32_t context_max, streams_max;
    uint32_t layers, hidden;
    uint32_t kv_blocks_total, kv_blocks_used, kv_block_tokens;
    uint64_t weights_bytes, kv_bytes, state_bytes, scratch_bytes;
    const char *checkpoint_digest;   // 64 hex digits
    const char *kv_rule, *rope_rule; // parts of the fingerprint, one line each
    const char *variant;             // of the backend's code: "avx512"; never changes a bit
    uint32_t threads, chunk_tokens, round_rows_max;
    uint64_t parameters;
    bool packed; // weights of 8 bits or less, most of them
    struct engine_work work;
    const char *
        experts_rule; // how the routed experts are held, and what was taken where both forms are; "" or NULL without
    const struct engine_region *regions; // of the device arena, in its order
    uint32_t regions_count;
    const char *embedding_rule; // where the rows of the embedding are and why
    uint64_t embedding_bytes;   // of those rows
    uint64_t pinned_bytes; // of the host: staging and what the card reads in place; 0 on the CPU
    uint64_t device_free_bytes; // left on the card behind the arena; 0 on the CPU
    uint32_t graphs;            // rounds that are launched by one call
    uint64_t graphs_bytes;      // what they take of the card, about, beside the arena
    uint32_t streams_whole;     // streams of the longest context that fit at once
    const char *draft_rule;     // where drafts come from, and why not from elsewhere
    const char *costs_rule;     // and the costs that their number follows from
    uint32_t draft_rows;        // of a stream's window in a round; 1: no drafts
    const char *drafter;        // its kind; NULL: there is none
    enum engine_draft drafter_kind;
    uint32_t drafter_ids_max; // of one block
    uint64_t drafter_bytes;   // of the arena: the drafter's own
};

struct engine_thought { // a bound on the thought that the prompt ends in
    uint32_t budget;    // ids, before it is closed; given ones counted
    uint32_t close_id;  // then drawn whatever the logits say; drawn by itself it ends the thought
    int64_t call_id;    // ends it too; -1: none
};

struct engine_request { // everything is copied by engine_submit
    const uint32_t *prompt;
    uint32_t prompt_count; // >= 1
    const uint32_t *given; // ids generated earlier: fed again, not drawn again
    uint32_t given_count;
    struct sample_params sampling; // checked by engine_submit
    uint32_t
        max_tokens; // in all, given ones counted; >= given_count. Cut to what the context leaves
    uint32_t min_tokens; // stop ids have no effect before
    const uint32_t *stop_ids;
    uint32_t stop_count;
    bool ignore_eos; // the vocabulary's stop ids (engine_set_vocab) are ordinary tokens
    bool logits_hash;
    bool draft;                           // may have drafts; the reply is the same
    int32_t top_logprobs;                 // -1: none
    const struct engine_thought *thought; // NULL: no bound
    uint64_t tag;                         // the caller's, given back in every event
};

struct engine_range {
    uint32_t first, count;
};
// Which ids may be drawn (the rest of the padded head is masked) and which end a reply. Copied. Only while no
// stream lives (ST_INVAL): a worker that joins another router is told anew.
int engine_set_vocab(struct engine *eng, const struct engine_range *used, uint32_t used_count,
                     const uint32_t *stop_ids, uint32_t stop_count, struct err *e);

// Loads the checkpoint. On failure *ret is untouched, everything is given back, and e names file, tensor, wanted, found.
int engine_new(struct engine **ret, const struct engine_config *config, struct err *e);
void engine_free(struct engine *eng); // NULL is fine; live streams end without an event
const struct engine_info *engine_info(struct engine *eng); // kv_blocks_used is as of the last call

// Admits a stream or answers ST_FULL (no slot, or no KV for prompt + max_tokens: what is admitted never runs out).
// ST_INVAL: an id outside the vocabulary or a setting out of range; ST_UNSUPPORTED; too long is ST_INVAL by name.
// *ret_handle is unique for the life of the engine.
int engine_submit(struct engine *eng, const struct engine_request *r, uint64_t *ret_handle,
                  struct err *e);
// The stream leaves before the next step; it has no further event. False: no such stream (it has ended).
bool engine_cancel(struct engine *eng, uint64_t handle);

// given ids that already hold the one that ends the reply (a stop id, or as many as max_tokens or the context allow) make a
// stream that is filled and then ends without a draw; a stop id before the last given id is ST_INVAL.
// BROKEN: the logits that the next token was to be drawn from hold values that are no finite numbers. Only this stream ends.
// Of a row that a device draws from it is seen where no value is finite, or one of the best is not (device_draw.c).
enum engine_finish {
    ENGINE_RUNNING,
    ENGINE_FINISH_STOP,
    ENGINE_FINISH_LENGTH,
    ENGINE_FINISH_BROKEN
};

struct engine_event { // one stream's share of a round
    uint64_t handle, tag;
    uint32_t first;      // index of ids[0] among the stream's generated ids, given ones counted
    const uint32_t *ids; // ids_count drawn in this round; none while the prompt is being filled
    uint32_t ids_count;
    uint32_t filled;                  // prompt (and given) rows whose state exists
    const float *logprobs;            // of the ids, or NULL; then
    const struct sample_logprob *top; // [ids_count, request's top_logprobs]
    enum engine_finish finish;
    int64_t stop_id; // the id that ended it, else -1
    // The rest stands only when finish is not ENGINE_RUNNING:
    uint32_t prompt_count, cached_count, completion_count;
    uint64_t queue_us, prefill_us, decode_us, rounds;
    uint64_t draft_rounds; // of rounds: those that checked drafts
    uint64_t drafted[ENGINE_DRAFT_KINDS], accepted[ENGINE_DRAFT_KINDS];
    uint64_t
        logits_hash; // over the bits of every row of logits that a token was drawn from, given ones counted
};

struct engine_round {
    uint64_t round;
    uint32_t rows; // of the forward
    uint32_t round_us;
    const struct engine_event *events; // until the next call
    uint32_t count;
};

// Runs one round: joins what was submitted, fills prompt chunks beside running streams, draws, commits. With nothing
// to do, count and rows are 0. ST_DEVICE: the device failed and the engine is good for engine_free only.
int engine_step(struct engine *eng, struct engine_round *ret, struct err *e);
bool engine_idle(struct engine *eng);
// The drafts of a live stream so far, by kind; zeros where there is no such stream. Returns the rounds that checked some.
uint64_t engine_drafts(struct engine *eng, uint64_t handle,
                       uint64_t ret_drafted[ENGINE_DRAFT_KINDS],
                       uint64_t ret_accepted[ENGINE_DRAFT_KINDS]);

/* State of one stream at a row: what drafts, kept prompts and replay are built on. Opaque bytes on the host side,
 * tied to this engine. Saving is possible between rounds. */
struct engine_state; // defined in state.c
int engine_state_save(struct engine *eng, uint64_t handle, struct engine_state **ret,
                      struct err *e);
void engine_state_free(struct engine_state *s); // NULL is fine
uint32_t engine_state_rows(const struct engine_state *s);
// Admits a stream that starts from the saved rows instead of row 0: the first engine_state_rows ids of
// prompt + given must be those that the state was made from, and at least one more must follow (checked, ST_INVAL).
// With logits_hash, a state that reaches past the prompt must come from a stream with that prompt and logits_hash, since
// the hash goes on from where it was (ST_INVAL).
int engine_submit_from(struct engine *eng, const struct engine_state *s,
                       const struct engine_request *r, uint64_t *ret_handle, struct err *e);

/* The forward alone, for goldens and tools: feeds count ids of one fresh stream and writes fp32 logits of the rows
 * asked for, [rows_count, vocab_size] row-major. Rows ascend. chunk 0: the engine's default. */
int engine_logits(struct engine *eng, const uint32_t *ids, uint32_t count, uint32_t chunk,
                  const uint32_t *rows, uint32_t rows_count, float *ret, struct err *e);

// What the drafter proposes behind a decoding stream's last id now, for measurements: nothing changes. Up to want ids, of the
// stream's draft_rows - 1; returns how many. 0 without a drafter, or for a stream that takes no drafts or does not decode.
uint32_t engine_propose(struct engine *eng, uint64_t handle, uint32_t want, uint32_t *ret);

struct engine_window {
    uint64_t handle;
    const uint32_t *ids; // [count]
    uint32_t count, keep;
    float *ret;  // [count, vocab_size] logits of every fed row, or NULL
    bool logits; // ... are made even so, for who measures
    // A branch beside it: ids that begin with ids[0] too. branch_kept: `keep` is of its rows, and none of the window's are kept.
    const uint32_t *branch; // [branch_count]
    uint32_t branch_count;  // 0: there is none
    bool branch_kept;
    float *branch_ret; // [branch_count, vocab_size], or NULL
};
/* A round of windows: feeds ids behind the rows of each stream without committing, as a verify round does, then keeps `keep` of
 * them and winds the rest back. A stream must be past its prompt. ids[0] is the id it drew last, which no row was fed with yet;
 * the others are what might follow. Each stream is moved exactly as by `keep` serial steps that draw ids[1] .. ids[keep-1] and
 * then what the last kept row gives; the next engine_step tells of those ids. keep 0 leaves it as it was. ST_INVAL: more rows in
 * all than ENGINE_WINDOW_ROWS_MAX, or than the stream has room for, two windows of a stream, another ids[0], or a kept id that
 * would have ended the reply; ST_UNSUPPORTED with logprobs, or a branch where the engine drafts no copies beside blocks. Nothing is
 * moved then. */
int engine_windows(struct engine *eng, const struct engine_window *w, uint32_t count,
                   struct err *e);

/* What rounds cost on a GPU, for the bench, while no stream lives (ST_INVAL); ST_UNSUPPORTED elsewhere. The states and caches of
 * all slots are overwritten. Takes memory of the card beside the arena: ST_NOMEM. */
enum { ENGINE_PROFILE_OPS_MAX = 48 };

struct
    engine_shape { // of a round: rows / streams rows of each stream, the last of them at position context - 1
    uint32_t rows, streams, context;
};

struct engine_profile {
    // Set by the caller. Each operation by itself, too; and whether states and caches stay as earlier rounds left them, which then
    // must have written a stream as long: a context of zeros takes less power.
    bool apart, as_it_is;
    double ms; // of the forward and the head, launches overlapping
    struct ops_time ops
        [ENGINE_PROFILE_OPS_MAX]; // each by itself, which takes longer; in the order they come first
    uint32_t count;
};
int engine_profile(struct engine *eng, const struct engine_shape *s, struct engine_profile *ret,
                   struct err *e);
// The same of a drafter's block of `rows` rows for each of s->streams, behind s->context positions, with the head and the choice of
// its best ids; s->rows is all of them. ST_UNSUPPORTED for drafters that have no blocks.
int engine_profile_blocks(struct engine *eng, const struct engine_shape *s,
                          struct engine_profile *ret, struct err *e);

// Where the time of a round goes: parts by the device's clock (on the CPU, the host's), which together are all of it.
enum engine_part {
    ENGINE_PART_HOST, // nothing runs on the device: copies to and from it, and what the host does beside
    ENGINE_PART_DRAFT,  // the drafter's blocks, and its best ids
    ENGINE_PART_VERIFY, // the forward of all rows, and the head
    ENGINE_PART_DRAW,
    ENGINE_PART_TAPS,   // kept rows are shown to the drafter
    ENGINE_PART_COMMIT, // states of windows follow their kept rows
    ENGINE_PARTS
};
// From now on the parts of rounds are told apart, at most ENGINE_PARTS_ROUNDS_MAX of them; end: their sums, and that is over. ST_NOMEM, ST_DEVICE;
// ST_UNSUPPORTED where the backend cannot.
enum { ENGINE_PARTS_ROUNDS_MAX = 128 };
int engine_parts_begin(struct engine *eng, struct err *e);
int engine_parts_end(struct engine *eng, double ret_ms[ENGINE_PARTS], struct err *e);
// For measurements: each decoding stream asks the drafter for so many ids a round, whatever pays, and has no copies. 0: as ever.
void engine_draft_always(struct engine *eng, uint32_t ids);
// Bytes a second, read and written, of a copy on the device.
int engine_copy_speed(struct engine *eng, double *ret, struct err *e);
