/* frame_layout: see frame_layout.h. The order of the lines is the order on the wire (frame.md). */
#include "proto/frame_layout.h"
#include "common/planted.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])
#define GROUP_OF(fields_, type_)                                                                   \
    { fields_, COUNT(fields_), sizeof(struct type_), 0 }

// S is the struct being described; each use sets it.
#define NUM(kind_, member_, min_, max_)                                                            \
    { #member_, FRAME_KIND_##kind_, offsetof(S, member_), 0, min_, max_, NULL }
#define U32(member_, min_, max_) NUM(U32, member_, min_, max_)
#define U64(member_) NUM(U64, member_, 0, UINT64_MAX)
#define I32(member_, min_, max_) NUM(I32, member_, min_, max_)
#define ID_OR_NONE(member_) NUM(I64, member_, -1, UINT32_MAX)
#define BOOL(member_) NUM(BOOL, member_, 0, 1)
#define REAL(member_) NUM(REAL, member_, INT64_MIN, UINT64_MAX)
#define REAL_IN(member_, min_, max_) NUM(REAL, member_, min_, max_)
#define F32(member_) NUM(F32, member_, INT64_MIN, UINT64_MAX)
#define TEXT(member_) NUM(TEXT, member_, 0, FRAME_TEXT_BYTES_MAX)
#define IDS(member_, min_, max_) NUM(IDS, member_, min_, max_)
#define MANY(kind_, member_, count_, max_, group_)                                                 \
    { #member_, FRAME_KIND_##kind_, offsetof(S, member_), offsetof(S, count_), 0, max_, group_ }
#define WORDS(member_, count_, max_) MANY(WORDS, member_, count_, max_, NULL)
#define FLOATS(member_, count_) MANY(FLOATS, member_, count_, UINT32_MAX, NULL)
#define LIST(member_, count_, max_, group_) MANY(LIST, member_, count_, max_, group_)
#define PER_ID(member_, count_, group_) MANY(PER_ID, member_, count_, UINT32_MAX, group_)
#define COUNTS(member_, n_) NUM(COUNTS, member_, 0, n_)
#define GROUP(member_, group_)                                                                     \
    { #member_, FRAME_KIND_GROUP, offsetof(S, member_), 0, 0, 0, group_ }

enum { SECONDS_MAX = 1000000000 };

#define S struct frame_stream
static const struct frame_field stream_fields[] = {U32(id, 1, UINT32_MAX),
                                                   U32(epoch, 0, UINT32_MAX)};
static const struct frame_group stream_group = GROUP_OF(stream_fields, frame_stream);
static const struct frame_field stream_or_none_fields[] = {U32(id, 0, UINT32_MAX),
                                                           U32(epoch, 0, UINT32_MAX)};
static const struct frame_group stream_or_none_group =
    GROUP_OF(stream_or_none_fields, frame_stream);
#undef S

#define S struct frame_fingerprint
static const struct frame_field fingerprint_fields[] = {
    TEXT(build), TEXT(checkpoint), TEXT(device), TEXT(kv), TEXT(rope),
};
static const struct frame_group fingerprint_group = GROUP_OF(fingerprint_fields, frame_fingerprint);
#undef S

#define S struct frame_hello
static const struct frame_field hello_fields[] = {
    U32(version_min, 0, UINT32_MAX),
    U32(version_max, 0, UINT32_MAX),
    I32(rank, -1, INT32_MAX),
    U32(pid, 0, UINT32_MAX),
    BOOL(supervised),
    TEXT(token),
    TEXT(name),
    TEXT(model),
    TEXT(gpu_name),
    TEXT(gpu_uuid),
    TEXT(gpu_pci),
    GROUP(fingerprint, &fingerprint_group),
};
#undef S

#define S struct frame_welcome
static const struct frame_field welcome_fields[] = {
    U32(version, 1, UINT32_MAX),
    U32(rank, 0, INT32_MAX),
    U32(generation, 1, UINT32_MAX),
    U64(router_epoch),
    TEXT(path),
    REAL_IN(progress_s, 0, SECONDS_MAX),
};
#undef S

#define S struct frame_range
static const struct frame_field range_fields[] = {U32(first, 0, UINT32_MAX),
                                                  U32(count, 1, UINT32_MAX)};
static const struct frame_group range_group = GROUP_OF(range_fields, frame_range);
#undef S

#define S struct frame_vocab
static const struct frame_field vocab_fields[] = {
    U32(size, 1, UINT32_MAX),
    LIST(used, used_count, FRAME_RANGES_MAX, &range_group),
    IDS(stop, 0, FRAME_STOP_IDS_MAX),
    IDS(special, 0, FRAME_PROMPT_IDS_MAX),
    ID_OR_NONE(think_open),
    ID_OR_NONE(think_close),
    ID_OR_NONE(tool_open),
};
#undef S

#define S struct frame_sampling
static const struct frame_field sampling_fields[] = {
    REAL(temperature),
    U32(top_k, 0, UINT32_MAX),
    REAL(top_p),
    REAL(min_p),
    REAL(presence),
    REAL(frequency),
    REAL(repetition),
    U64(seed),
    WORDS(bias_ids, bias_count, FRAME_BIAS_MAX),
    FLOATS(bias, bias_count),
};
static const struct frame_group sampling_group = GROUP_OF(sampling_fields, frame_sampling);
#undef S

#define S struct frame_submit
static const struct frame_field submit_fields[] = {
    GROUP(stream, &stream_group),
    TEXT(request_id),
    TEXT(trace),
    IDS(prompt, 1, FRAME_PROMPT_IDS_MAX),
    IDS(given, 0, FRAME_PROMPT_IDS_MAX),
    GROUP(sampling, &sampling_group),
    U32(max_tokens, 1, UINT32_MAX),
    U32(min_tokens, 0, UINT32_MAX),
    IDS(stop, 0, FRAME_STOP_IDS_MAX),
    BOOL(ignore_eos),
    BOOL(draft),
    BOOL(logits_hash),
    I32(top_logprobs, -1, FRAME_TOP_LOGPROBS_MAX),
    ID_OR_NONE(think_budget),
    BOOL(in_thought),
    U64(prefix_salt),
    I32(priority, INT32_MIN, INT32_MAX),
};
#undef S

#define S struct frame_cancel
static const struct frame_field cancel_fields[] = {
    LIST(streams, count, FRAME_STREAMS_MAX, &stream_group),
};
#undef S

#define S struct frame_logprob
static const struct frame_field logprob_fields[] = {U32(id, 0, UINT32_MAX), F32(logprob)};
static const struct frame_group logprob_group = GROUP_OF(logprob_fields, frame_logprob);
#undef S

#define S struct frame_logprobs
static const struct frame_field logprobs_fields[] = {
    F32(logprob),
    LIST(top, top_count, FRAME_TOP_LOGPROBS_MAX, &logprob_group),
};
static const struct frame_group logprobs_group = GROUP_OF(logprobs_fields, frame_logprobs);
#undef S

#define S struct frame_tokens_entry
static const struct frame_field entry_fields[] = {
    GROUP(stream, &stream_group),
    U32(first, 0, UINT32_MAX),
    IDS(ids, 0, FRAME_ROUND_IDS_MAX),
    U32(filled, 0, UINT32_MAX),
    PER_ID(logprobs, ids.count, &logprobs_group),
};
static const struct frame_group entry_group = GROUP_OF(entry_fields, frame_tokens_entry);
#undef S

#define S struct frame_tokens
static const struct frame_field tokens_fields[] = {
    U64(round),
    U32(round_us, 0, UINT32_MAX),
    U32(rows, 0, UINT32_MAX),
    LIST(entries, count, FRAME_STREAMS_MAX, &entry_group),
};
#undef S

#define S struct frame_done
static const struct frame_field done_fields[] = {
    GROUP(stream, &stream_group),
    U32(finish, FRAME_FINISH_STOP, FRAME_FINISH_END - 1),
    ID_OR_NONE(stop_id),
    U32(prompt_tokens, 0, UINT32_MAX),
    U32(cached_tokens, 0, UINT32_MAX),
    U32(completion_tokens, 0, UINT32_MAX),
    U64(queue_us),
    U64(prefill_us),
    U64(decode_us),
    U64(rounds),
    COUNTS(drafted, FRAME_DRAFT_KINDS),
    COUNTS(accepted, FRAME_DRAFT_KINDS),
    U64(logits_hash),
    U64(draft_rounds),
};
#undef S

#define S struct frame_fail
static const struct frame_field fail_fields[] = {
    GROUP(stream, &stream_or_none_group),
    U32(code, FRAME_FAIL_FULL, FRAME_FAIL_CODE_END - 1),
    TEXT(message),
};
#undef S

#define S struct frame_prefix
static const struct frame_field prefix_fields[] = {U64(digest), U32(tokens, 1, UINT32_MAX)};
static const struct frame_group prefix_group = GROUP_OF(prefix_fields, frame_prefix);
#undef S

#define S struct frame_memory
static const struct frame_field memory_fields[] = {TEXT(name), U64(bytes)};
static const struct frame_group memory_group = GROUP_OF(memory_fields, frame_memory);
#undef S

#define S struct frame_status
static const struct frame_field status_fields[] = {
    U32(state, FRAME_STATE_LOADING, FRAME_STATE_END - 1),
    TEXT(reason),
    REAL_IN(load_fraction, 0, 1),
    U64(progress),
    U32(streams_running, 0, UINT32_MAX),
    U32(streams_max, 0, UINT32_MAX),
    U32(room, 0, UINT32_MAX),
    U32(queue_requests, 0, UINT32_MAX),
    U64(queue_tokens),
    U32(context_max, 0, UINT32_MAX),
    U32(vocab_size, 0, UINT32_MAX),
    U32(kv_blocks_used, 0, UINT32_MAX),
    U32(kv_blocks_total, 0, UINT32_MAX),
    U32(kv_block_tokens, 0, UINT32_MAX),
    U64(kept_prefix_tokens),
    REAL_IN(fill_tokens_per_s, 0, UINT64_MAX),
    REAL_IN(round_ms, 0, UINT64_MAX),
    U64(rounds),
    U64(tokens),
    U64(prompt_tokens),
    GROUP(fingerprint, &fingerprint_group),
    LIST(kept, kept_count, FRAME_PREFIXES_MAX, &prefix_group),
    LIST(evicted, evicted_count, FRAME_PREFIXES_MAX, &prefix_group),
    TEXT(embedding),
    LIST(memory, memory_count, FRAME_MEMORY_MAX, &memory_group),
};
#undef S

#define S struct frame_drain
static const struct frame_field drain_fields[] = {
    U32(mode, FRAME_DRAIN_FINISH, FRAME_DRAIN_END - 1),
    REAL_IN(timeout_s, 0, SECONDS_MAX),
};
#undef S

#define S struct frame_goodbye
static const struct frame_field goodbye_fields[] = {TEXT(reason)};
#undef S

#define S struct frame_ping
static const struct frame_field ping_fields[] = {U64(seq), U64(time_us)};
#undef S

const struct frame_group *frame_layout(uint64_t type) {
    static const struct frame_group groups[FRAME_TYPE_END] = {
        [FRAME_HELLO] = GROUP_OF(hello_fields, frame_hello),
        [FRAME_WELCOME] = GROUP_OF(welcome_fields, frame_welcome),
        [FRAME_VOCAB] = GROUP_OF(vocab_fields, frame_vocab),
        [FRAME_SUBMIT] = GROUP_OF(submit_fields, frame_submit),
        [FRAME_CANCEL] = GROUP_OF(cancel_fields, frame_cancel),
        [FRAME_TOKENS] = GROUP_OF(tokens_fields, frame_tokens),
        [FRAME_DONE] = {done_fields, COUNT(done_fields), sizeof(struct frame_done), .later = 1},
        [FRAME_FAIL] = GROUP_OF(fail_fields, frame_fail),
        [FRAME_STATUS] = GROUP_OF(status_fields, frame_status),
        [FRAME_DRAIN] = GROUP_OF(drain_fields, frame_drain),
        [FRAME_GOODBYE] = GROUP_OF(goodbye_fields, frame_goodbye),
        [FRAME_PING] = GROUP_OF(ping_fields, frame_ping),
        [FRAME_PONG] = GROUP_OF(ping_fields, frame_ping),
    };
    return type >= FRAME_HELLO && type < FRAME_TYPE_END + PLANTED ? &groups[type] : NULL;
}
