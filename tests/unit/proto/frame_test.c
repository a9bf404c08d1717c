/* frame: what is sent is what arrives, and no bytes of a peer do more than be refused. */
#include "common/arena.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "proto/frame.h"
#include "tests/lib/frame_samples.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

static struct arena arena; // of the running test; reset at its start
static struct strbuf bytes;

static void encode_sample(struct frame *ret, enum frame_type t, enum frame_sample_size size) {
    struct err e = {0};
    frame_sample(ret, t, size, &arena);
    strbuf_reset(&bytes);
    CHECK_OK(frame_encode(&bytes, ret, &e), e);
}

static void check_stream(struct frame_stream a, struct frame_stream b) {
    CHECK_EQ(a.id, b.id);
    CHECK_EQ(a.epoch, b.epoch);
}

static void check_ids(struct frame_ids a, struct frame_ids b) {
    CHECK_EQ(a.count, b.count);
    CHECK_MEM(a.le, b.le, 4 * (size_t)a.count);
}

static void check_fingerprint(const struct frame_fingerprint *a,
                              const struct frame_fingerprint *b) {
    CHECK_STR(a->build, b->build);
    CHECK_STR(a->checkpoint, b->checkpoint);
    CHECK_STR(a->device, b->device);
    CHECK_STR(a->kv, b->kv);
    CHECK_STR(a->rope, b->rope);
}

static void check_hello(const struct frame_hello *a, const struct frame_hello *b) {
    CHECK_EQ(a->version_min, b->version_min);
    CHECK_EQ(a->version_max, b->version_max);
    CHECK_EQ(a->rank, b->rank);
    CHECK_EQ(a->pid, b->pid);
    CHECK_EQ(a->supervised, b->supervised);
    CHECK_STR(a->token, b->token);
    CHECK_STR(a->name, b->name);
    CHECK_STR(a->model, b->model);
    CHECK_STR(a->gpu_name, b->gpu_name);
    CHECK_STR(a->gpu_uuid, b->gpu_uuid);
    CHECK_STR(a->gpu_pci, b->gpu_pci);
    check_fingerprint(&a->fingerprint, &b->fingerprint);
}

static void check_welcome(const struct frame_welcome *a, const struct frame_welcome *b) {
    CHECK_EQ(a->version, b->version);
    CHECK_EQ(a->rank, b->rank);
    CHECK_EQ(a->generation, b->generation);
    CHECK_EQ_U64(a->router_epoch, b->router_epoch);
    CHECK_STR(a->path, b->path);
    CHECK(a->progress_s == b->progress_s);
}

static void check_vocab(const struct frame_vocab *a, const struct frame_vocab *b) {
    CHECK_EQ(a->size, b->size);
    CHECK_EQ(a->used_count, b->used_count);
    CHECK_MEM(a->used, b->used, a->used_count * sizeof *a->used);
    check_ids(a->stop, b->stop);
    check_ids(a->special, b->special);
    CHECK_EQ(a->think_open, b->think_open);
    CHECK_EQ(a->think_close, b->think_close);
    CHECK_EQ(a->tool_open, b->tool_open);
}

static void check_sampling(const struct frame_sampling *a, const struct frame_sampling *b) {
    CHECK(a->temperature == b->temperature);
    CHECK_EQ(a->top_k, b->top_k);
    CHECK(a->top_p == b->top_p);
    CHECK(a->min_p == b->min_p);
    CHECK(a->presence == b->presence);
    CHECK(a->frequency == b->frequency);
    CHECK(a->repetition == b->repetition);
    CHECK_EQ_U64(a->seed, b->seed);
    CHECK_EQ(a->bias_count, b->bias_count);
    CHECK_MEM(a->bias_ids, b->bias_ids, a->bias_count * sizeof *a->bias_ids);
    CHECK_MEM(a->bias, b->bias, a->bias_count * sizeof *a->bias);
}

static void check_submit(const struct frame_submit *a, const struct frame_submit *b) {
    check_stream(a->stream, b->stream);
    CHECK_STR(a->request_id, b->request_id);
    CHECK_STR(a->trace, b->trace);
    check_ids(a->prompt, b->prompt);
    check_ids(a->given, b->given);
    check_sampling(&a->sampling, &b->sampling);
    CHECK_EQ(a->max_tokens, b->max_tokens);
    CHECK_EQ(a->min_tokens, b->min_tokens);
    check_ids(a->stop, b->stop);
    CHECK_EQ(a->ignore_eos, b->ignore_eos);
    CHECK_EQ(a->draft, b->draft);
    CHECK_EQ(a->logits_hash, b->logits_hash);
    CHECK_EQ(a->top_logprobs, b->top_logprobs);
    CHECK_EQ(a->think_budget, b->think_budget);
    CHECK_EQ(a->in_thought, b->in_thought);
    CHECK_EQ_U64(a->prefix_salt, b->prefix_salt);
    CHECK_EQ(a->priority, b->priority);
}

static void check_logprobs(const struct frame_logprobs *a, const struct frame_logprobs *b,
                           uint32_t count) {
    CHECK_EQ(a == NULL, b == NULL);
    for (uint32_t i = 0; a && i < count; i++) {
        CHECK(a[i].logprob == b[i].logprob);
        CHECK_EQ(a[i].top_count, b[i].top_count);
        CHECK_MEM(a[i].top, b[i].top, a[i].top_count * sizeof *a[i].top);
    }
}

static void check_tokens(const struct frame_tokens *a, const struct frame_tokens *b) {
    CHECK_EQ_U64(a->round, b->round);
    CHECK_EQ(a->round_us, b->round_us);
    CHECK_EQ(a->rows, b->rows);
    CHECK_EQ(a->count, b->count);
    for (uint32_t i = 0; i < a->count; i++) {
        const struct frame_tokens_entry *x = &a->entries[i], *y = &b->entries[i];
        check_stream(x->stream, y->stream);
        CHECK_EQ(x->first, y->first);
        check_ids(x->ids, y->ids);
        CHECK_EQ(x->filled, y->filled);
        check_logprobs(x->logprobs, y->logprobs, x->ids.count);
    }
}

static void check_done(const struct frame_done *a, const struct frame_done *b) {
    check_stream(a->stream, b->stream);
    CHECK_EQ(a->finish, b->finish);
    CHECK_EQ(a->stop_id, b->stop_id);
    CHECK_EQ(a->prompt_tokens, b->prompt_tokens);
    CHECK_EQ(a->cached_tokens, b->cached_tokens);
    CHECK_EQ(a->completion_tokens, b->completion_tokens);
    CHECK_EQ_U64(a->queue_us, b->queue_us);
    CHECK_EQ_U64(a->prefill_us, b->prefill_us);
    CHECK_EQ_U64(a->decode_us, b->decode_us);
    CHECK_EQ_U64(a->rounds, b->rounds);
    CHECK_MEM(a->drafted, b->drafted, sizeof a->drafted);
    CHECK_MEM(a->accepted, b->accepted, sizeof a->accepted);
    CHECK_EQ_U64(a->logits_hash, b->logits_hash);
    CHECK_EQ_U64(a->draft_rounds, b->draft_rounds);
}

static void check_prefixes(const struct frame_prefix *a, const struct frame_prefix *b,
                           uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQ_U64(a[i].digest, b[i].digest);
        CHECK_EQ(a[i].tokens, b[i].tokens);
    }
}

static void check_status(const struct frame_status *a, const struct frame_status *b) {
    CHECK_EQ(a->state, b->state);
    CHECK_STR(a->reason, b->reason);
    CHECK(a->load_fraction == b->load_fraction);
    CHECK_EQ_U64(a->progress, b->progress);
    CHECK_EQ(a->streams_running, b->streams_running);
    CHECK_EQ(a->streams_max, b->streams_max);
    CHECK_EQ(a->room, b->room);
    CHECK_EQ(a->queue_requests, b->queue_requests);
    CHECK_EQ_U64(a->queue_tokens, b->queue_tokens);
    CHECK_EQ(a->context_max, b->context_max);
    CHECK_EQ(a->vocab_size, b->vocab_size);
    CHECK_EQ(a->kv_blocks_used, b->kv_blocks_used);
    CHECK_EQ(a->kv_blocks_total, b->kv_blocks_total);
    CHECK_EQ(a->kv_block_tokens, b->kv_block_tokens);
    CHECK_EQ_U64(a->kept_prefix_tokens, b->kept_prefix_tokens);
    CHECK(a->fill_tokens_per_s == b->fill_tokens_per_s);
    CHECK(a->round_ms == b->round_ms);
    CHECK_EQ_U64(a->rounds, b->rounds);
    CHECK_EQ_U64(a->tokens, b->tokens);
    CHECK_EQ_U64(a->prompt_tokens, b->prompt_tokens);
    check_fingerprint(&a->fingerprint, &b->fingerprint);
    CHECK_EQ(a->kept_count, b->kept_count);
    check_prefixes(a->kept, b->kept, a->kept_count);
    CHECK_EQ(a->evicted_count, b->evicted_count);
    check_prefixes(a->evicted, b->evicted, a->evicted_count);
    CHECK_STR(a->embedding, b->embedding);
    CHECK_EQ(a->memory_count, b->memory_count);
    for (uint32_t i = 0; i < a->memory_count; i++) {
        CHECK_STR(a->memory[i].name, b->memory[i].name);
        CHECK_EQ_U64(a->memory[i].bytes, b->memory[i].bytes);
    }
}

static void check_frame(const struct frame *a, const struct frame *b) {
    CHECK_EQ(a->type, b->type);
    CHECK_EQ(a->generation, b->generation);
    switch (a->type) {
    case FRAME_HELLO: check_hello(&a->hello, &b->hello); return;
    case FRAME_WELCOME: check_welcome(&a->welcome, &b->welcome); return;
    case FRAME_VOCAB: check_vocab(&a->vocab, &b->vocab); return;
    case FRAME_SUBMIT: check_submit(&a->submit, &b->submit); return;
    case FRAME_CANCEL:
        CHECK_EQ(a->cancel.count, b->cancel.count);
        for (uint32_t i = 0; i < a->cancel.count; i++)
            check_stream(a->cancel.streams[i], b->cancel.streams[i]);
        return;
    case FRAME_TOKENS: check_tokens(&a->tokens, &b->tokens); return;
    case FRAME_DONE: check_done(&a->done, &b->done); return;
    case FRAME_FAIL:
        check_stream(a->fail.stream, b->fail.stream);
        CHECK_EQ(a->fail.code, b->fail.code);
        CHECK_STR(a->fail.message, b->fail.message);
        return;
    case FRAME_STATUS: check_status(&a->status, &b->status); return;
    case FRAME_DRAIN:
        CHECK_EQ(a->drain.mode, b->drain.mode);
        CHECK(a->drain.timeout_s == b->drain.timeout_s);
        return;
    case FRAME_GOODBYE: CHECK_STR(a->goodbye.reason, b->goodbye.reason); return;
    case FRAME_PING:
    case FRAME_PONG:
        CHECK_EQ_U64(a->ping.seq, b->ping.seq);
        CHECK_EQ_U64(a->ping.time_us, b->ping.time_us);
        return;
    case FRAME_TYPE_END: break;
    }
    CHECK(!"a frame type without a check");
}

TEST(every_frame_comes_back_as_it_was_sent) {
    for (int t = FRAME_HELLO; t < FRAME_TYPE_END; t++) {
        for (int size = 0; size < FRAME_SAMPLE_SIZES; size++) {
            struct frame sent, got = {0};
            struct err e = {0};
            arena_reset(&arena);
            encode_sample(&sent, (enum frame_type)t, (enum frame_sample_size)size);
            CHECK_OK(frame_decode(&got, (uint8_t *)bytes.p, bytes.len, &arena, &e), e);
            check_frame(&sent, &got);
        }
    }
}

TEST(every_frame_has_a_name) {
    for (int t = FRAME_HELLO; t < FRAME_TYPE_END; t++)
        CHECK(strcmp(frame_type_name((enum frame_type)t), "unknown") != 0);
    for (int s = FRAME_STATE_LOADING; s < FRAME_STATE_END; s++)
        CHECK(strcmp(frame_state_name((enum frame_state)s), "unknown") != 0);
    for (int c = FRAME_FAIL_FULL; c < FRAME_FAIL_CODE_END; c++)
        CHECK(strcmp(frame_fail_name((enum frame_fail_code)c), "unknown") != 0);
    CHECK_STR(frame_type_name((enum frame_type)99), "unknown");
}

// Decodes an exact-size heap copy, so that the address sanitizer sees a read of one byte too many.
static int decode_copy(const void *p, size_t len, struct err *e) {
    uint8_t *copy = mem_alloc(len);
    if (len) memcpy(copy, p, len);
    struct frame got;
    arena_reset(&arena);
    int st = frame_decode(&got, copy, len, &arena, e);
    free(copy);
    return st;
}

TEST(every_truncation_of_every_frame_is_refused) {
    for (int t = FRAME_HELLO; t < FRAME_TYPE_END; t++) {
        struct frame sent;
        struct err e = {0};
        encode_sample(&sent, (enum frame_type)t, FRAME_SAMPLE_USUAL);
        struct strbuf whole = bytes;
        bytes = (struct strbuf){0};
        for (size_t n = 0; n < whole.len; n++) CHECK_EQ(decode_copy(whole.p, n, &e), ST_CORRUPT);
        CHECK_OK(decode_copy(whole.p, whole.len, &e), e);
        strbuf_fini(&whole);
    }
}

TEST(every_frame_with_bytes_behind_its_end_is_refused) {
    for (int t = FRAME_HELLO; t < FRAME_TYPE_END; t++) {
        struct frame sent;
        struct err e = {0};
        encode_sample(&sent, (enum frame_type)t, FRAME_SAMPLE_USUAL);
        strbuf_add_char(&bytes, '\0');
        CHECK_EQ(decode_copy(bytes.p, bytes.len, &e), ST_CORRUPT);
        CHECK_HAS(e.msg, "behind its end");
    }
}

// Every byte set to each of a few telling values: heads of all kinds, all ones, off by one.
TEST(a_frame_with_one_byte_changed_is_decoded_or_refused_and_never_more) {
    static const uint8_t values[] = {0x00, 0x7f, 0x80, 0x90, 0xa0, 0xc0, 0xc1, 0xc4, 0xc6, 0xc7,
                                     0xca, 0xcb, 0xcf, 0xd3, 0xd4, 0xdb, 0xdc, 0xdd, 0xdf, 0xff};
    uint32_t taken = 0, refused = 0;
    for (int t = FRAME_HELLO; t < FRAME_TYPE_END; t++) {
        struct frame sent;
        struct err e = {0};
        encode_sample(&sent, (enum frame_type)t, FRAME_SAMPLE_USUAL);
        struct strbuf whole = bytes;
        bytes = (struct strbuf){0};
        for (size_t i = 0; i < whole.len; i++) {
            char was = whole.p[i];
            for (size_t k = 0; k <= sizeof values; k++) {
                whole.p[i] = k < sizeof values ? (char)values[k] : (char)(was ^ 1);
                int st = decode_copy(whole.p, whole.len, &e);
                CHECK(st == ST_OK || st == ST_CORRUPT || st == ST_UNSUPPORTED);
                if (st) CHECK(e.msg[0] && !strchr(e.msg, '\n'));
                if (st)
                    refused++;
                else
                    taken++;
            }
            whole.p[i] = was;
        }
        strbuf_fini(&whole);
    }
    CHECK(taken > 1000 && refused > 1000); // both ways were really walked
}

TEST(random_cuts_and_splices_of_frames_are_decoded_or_refused) {
    uint64_t x = 88172645463325252u; // xorshift64
    struct frame f;
    struct strbuf all = {0};
    struct err e = {0};
    for (int t = FRAME_HELLO; t < FRAME_TYPE_END; t++) {
        encode_sample(&f, (enum frame_type)t, FRAME_SAMPLE_USUAL);
        strbuf_add(&all, bytes.p, bytes.len);
    }
    char buf[512];
    for (int i = 0; i < 200000; i++) {
        size_t n = 0;
        while (n < 400) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            size_t at = x % (all.len - 64), len = x >> 32 & 63;
            memcpy(buf + n, all.p + at, len);
            n += len;
            if (x >> 60 == 0) break;
        }
        int st = decode_copy(buf, n, &e);
        CHECK(st == ST_OK || st == ST_CORRUPT || st == ST_UNSUPPORTED);
    }
    strbuf_fini(&all);
}

// Bytes that a peer may send to make us reserve, recurse or read past the end.
TEST(hostile_bytes_are_refused_by_what_is_wrong_with_them) {
    static const struct {
        const char *bytes;
        size_t len;
        int st;
        const char *says;
    } cases[] = {
        {"", 0, ST_CORRUPT, "ends inside"},
        {"\xc1", 1, ST_CORRUPT, "type byte 0xc1"},
        {"\xd4\x01\x00", 3, ST_CORRUPT, "type byte 0xd4"},                   // an extension
        {"\xc7\x00\x01", 3, ST_CORRUPT, "type byte 0xc7"},                   // an extension
        {"\xdd\x0f\xff\xff\xff", 5, ST_CORRUPT, "claims 268435455 objects"}, // 8 GB unpacked
        {"\xdf\xff\xff\xff\xff", 5, ST_CORRUPT, "claims 8589934590 objects"},
        {"\xc6\xff\xff\xff\xff", 5, ST_CORRUPT, "ends inside"},
        {"\xdb\x7f\xff\xff\xff", 5, ST_CORRUPT, "ends inside"},
        {"\xdc\xff", 2, ST_CORRUPT, "ends inside"},
        {"\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x00", 11, ST_CORRUPT, "nests deeper than 8"},
        {"\x00", 1, ST_CORRUPT, "wanted [type, generation"},
        {"\x80", 1, ST_CORRUPT, "found a map"},
        {"\x90", 1, ST_CORRUPT, "wanted [type, generation"},
        {"\x91\x0c", 2, ST_CORRUPT, "wanted [type, generation"},
        {"\x92\xa1\x61\x00", 4, ST_CORRUPT, "wanted [type, generation"},
        {"\x92\x0c\xff", 3, ST_CORRUPT, "wanted [type, generation"},
        {"\x92\x0c\xcf\0\0\0\1\0\0\0\0", 11, ST_CORRUPT, "wanted [type, generation"},
        {"\x92\x00\x01", 3, ST_UNSUPPORTED, "type 0"},
        {"\x92\x0e\x01", 3, ST_UNSUPPORTED, "type 14"},
        {"\x92\xce\xff\xff\xff\xff\x01", 7, ST_UNSUPPORTED, "type 4294967295"},
        {"\x92\x0c\x01", 3, ST_CORRUPT, "PING: wanted 2 fields, found 0"},
        {"\x94\x0c\x01\x05\xa1\x61", 6, ST_CORRUPT, "PING: field time_us: wanted a whole number"},
        {"\x94\x0c\x01\xff\x05", 5, ST_CORRUPT, "field seq: wanted a whole number"},
        {"\x93\x0b\x01\xa2\xc3\x28", 6, ST_CORRUPT, "field reason: wanted UTF-8"},
        {"\x93\x0b\x01\xa3\xed\xa0\x80", 7, ST_CORRUPT, "field reason: wanted UTF-8"},
        {"\x93\x0b\x01\xa1\x00", 5, ST_CORRUPT, "without NUL"},
        {"\x93\x0b\x01\xc4\x00", 5, ST_CORRUPT, "wanted text, found bytes"},
        {"\x94\x0a\x01\x09\xca\0\0\0\0", 9, ST_CORRUPT, "field mode: wanted 1 to 3, found 9"},
        {"\x94\x0a\x01\x01\xca\x7f\xc0\0\0", 9, ST_CORRUPT, "finite number in range, found nan"},
        {"\x94\x0a\x01\x01\xca\xbf\x80\0\0", 9, ST_CORRUPT, "in range, found -1"},
        {"\x94\x0a\x01\x01\x05", 5, ST_CORRUPT, "wanted a real number"},
        {"\x93\x05\x01\x91\x92\x00\x00", 7, ST_CORRUPT, "field id: wanted 1 to 4294967295"},
        {"\x93\x05\x01\x91\x91\x01", 6, ST_CORRUPT, "field streams: wanted an array of 2"},
        {"\x93\x05\x01\x91\x01", 5, ST_CORRUPT, "field streams: wanted an array, found"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err e = {0};
        CHECK_EQ(decode_copy(cases[i].bytes, cases[i].len, &e), cases[i].st);
        CHECK_HAS(e.msg, cases[i].says);
    }
}

TEST(fields_behind_the_known_ones_are_ignored) {
    struct err e = {0};
    // PING, and GOODBYE and CANCEL with more fields than this version has, in a nested array too.
    CHECK_OK(decode_copy("\x96\x0c\x01\x05\x06\xa1x\x93\x01\x02\x03", 11, &e), e);
    CHECK_OK(decode_copy("\x94\x0b\x01\xa1x\xc0", 6, &e), e);
    CHECK_OK(decode_copy("\x93\x05\x01\x91\x94\x01\x02\x03\x90", 9, &e), e);
}

// An older worker's DONE ends before draft_rounds.
TEST(a_field_that_was_added_later_may_be_missing_and_is_then_0) {
    struct frame f = {.type = FRAME_DONE,
                      .generation = 1,
                      .done = {.stream = {1, 0}, .finish = FRAME_FINISH_STOP, .draft_rounds = 5}};
    struct frame got = {0};
    struct err e = {0};
    struct arena a = {0};
    strbuf_reset(&bytes);
    CHECK_OK(frame_encode(&bytes, &f, &e), e);
    CHECK_OK(frame_decode(&got, (const uint8_t *)bytes.p, bytes.len, &a, &e), e);
    CHECK_EQ_U64(got.done.draft_rounds, 5);
    CHECK_MEM(bytes.p, "\xdc\x00\x10", 3); // an array of 16
    bytes.p[2] = '\x0f';
    CHECK_OK(frame_decode(&got, (const uint8_t *)bytes.p, bytes.len - 1, &a, &e), e);
    CHECK_EQ_U64(got.done.draft_rounds, 0);
    bytes.p[2] = '\x0e';
    CHECK_EQ(frame_decode(&got, (const uint8_t *)bytes.p, bytes.len - 2, &a, &e), ST_CORRUPT);
    CHECK_HAS(e.msg, "wanted 13 fields, found 12");
    arena_fini(&a);
}

static struct frame cancel_of(const struct frame_stream *v, uint32_t count) {
    return (struct frame){.type = FRAME_CANCEL, .generation = 1, .cancel = {v, count}};
}

TEST(a_list_longer_than_its_limit_is_refused_with_both_numbers) {
    enum { N = FRAME_STREAMS_MAX };
    struct frame_stream *v = mem_calloc(N, sizeof *v);
    struct err e = {0};
    for (uint32_t i = 0; i < N; i++) v[i].id = 1;
    struct frame f = cancel_of(v, N);
    strbuf_reset(&bytes);
    CHECK_OK(frame_encode(&bytes, &f, &e), e);
    CHECK_OK(decode_copy(bytes.p, bytes.len, &e), e);
    bytes.p[5] = (char)((N + 1) & 0xff); // the array head is dc 10 00 at byte 3
    strbuf_add(&bytes, "\x92\x01\x00", 3);
    CHECK_EQ(decode_copy(bytes.p, bytes.len, &e), ST_CORRUPT);
    CHECK_HAS(e.msg, "wanted 0 to 4096 entries, found 4097");
    free(v);
}

TEST(too_many_objects_are_refused_before_anything_is_unpacked) {
    size_t n = FRAME_OBJECTS_MAX + 8;
    char *p = mem_calloc(n, 1); // zeros are small numbers
    struct err e = {0};
    uint32_t count = (uint32_t)n - 5;
    p[0] = '\xdd';
    for (int i = 0; i < 4; i++) p[1 + i] = (char)(count >> (24 - 8 * i));
    CHECK_EQ(decode_copy(p, n, &e), ST_CORRUPT);
    CHECK_HAS(e.msg, "more than 1048576 objects");
    free(p);
}

TEST(a_frame_over_the_byte_limit_is_refused_on_both_sides) {
    struct err e = {0};
    struct frame f;
    uint32_t *v = mem_calloc(FRAME_PROMPT_IDS_MAX, sizeof *v);
    arena_reset(&arena);
    frame_sample(&f, FRAME_SUBMIT, FRAME_SAMPLE_USUAL, &arena);
    f.submit.prompt = (struct frame_ids){(uint8_t *)v, FRAME_PROMPT_IDS_MAX};
    f.submit.given = f.submit.prompt;
    strbuf_reset(&bytes);
    strbuf_add_str(&bytes, "before");
    CHECK_EQ(frame_encode(&bytes, &f, &e), ST_FULL);
    CHECK_STR(bytes.p, "before");
    CHECK_HAS(e.msg, "SUBMIT of 83");
    free(v);
    char *p = mem_calloc(FRAME_BYTES_MAX + 1, 1);
    CHECK_EQ(decode_copy(p, FRAME_BYTES_MAX + 1, &e), ST_CORRUPT);
    CHECK_HAS(e.msg, "at most 8388608");
    free(p);
}

TEST(prompt_and_given_ids_share_one_limit) {
    struct err e = {0};
    struct frame f;
    uint32_t *v = mem_calloc(FRAME_PROMPT_IDS_MAX, sizeof *v);
    arena_reset(&arena);
    frame_sample(&f, FRAME_SUBMIT, FRAME_SAMPLE_LEAST, &arena);
    f.submit.prompt = (struct frame_ids){(uint8_t *)v, FRAME_PROMPT_IDS_MAX};
    strbuf_reset(&bytes);
    CHECK_OK(frame_encode(&bytes, &f, &e), e);
    CHECK_OK(decode_copy(bytes.p, bytes.len, &e), e);
    f.submit.given = (struct frame_ids){(uint8_t *)v, 1};
    strbuf_reset(&bytes);
    CHECK_OK(frame_encode(&bytes, &f, &e), e);
    CHECK_EQ(decode_copy(bytes.p, bytes.len, &e), ST_CORRUPT);
    CHECK_HAS(e.msg, "field given");
    free(v);
}

TEST(a_vocabulary_whose_ranges_overlap_touch_or_leave_the_head_is_refused) {
    static const struct {
        struct frame_range r[2];
        uint32_t count;
        int st;
    } cases[] = {
        {{{0, 10}, {11, 89}}, 2, ST_OK},     {{{0, 100}}, 1, ST_OK},
        {{{0, 0}}, 0, ST_CORRUPT},           {{{0, 101}}, 1, ST_CORRUPT},
        {{{99, UINT32_MAX}}, 1, ST_CORRUPT}, {{{0, 10}, {10, 5}}, 2, ST_CORRUPT}, // touch
        {{{0, 10}, {9, 5}}, 2, ST_CORRUPT},                                       // overlap
        {{{50, 10}, {0, 5}}, 2, ST_CORRUPT},                                      // descend
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err e = {0};
        struct frame_range r[2];
        memcpy(r, cases[i].r, sizeof r);
        struct frame f = {.type = FRAME_VOCAB,
                          .generation = 1,
                          .vocab = {.size = 100, .used = r, .used_count = cases[i].count}};
        strbuf_reset(&bytes);
        CHECK_OK(frame_encode(&bytes, &f, &e), e);
        CHECK_EQ(decode_copy(bytes.p, bytes.len, &e), cases[i].st);
    }
}

// A folder may be named in any bytes; its worker must still be able to say HELLO.
TEST(bytes_of_a_text_that_are_no_utf8_go_as_question_marks) {
    struct err e = {0};
    struct frame got, f = {.type = FRAME_GOODBYE, .generation = 1, .goodbye = {"a\xff\xe2\x82 b"}};
    strbuf_reset(&bytes);
    CHECK_OK(frame_encode(&bytes, &f, &e), e);
    CHECK_OK(frame_decode(&got, (uint8_t *)bytes.p, bytes.len, &arena, &e), e);
    CHECK_STR(got.goodbye.reason, "a??? b");
}

TEST(the_highest_common_version_is_picked_and_none_is_0) {
    static const struct {
        uint32_t lo, hi, want;
    } cases[] = {{2, 2, 2}, {1, 9, 2},          {0, 2, 2}, {0, 1, 0},
                 {3, 9, 0}, {0, UINT32_MAX, 2}, {5, 1, 0}, {UINT32_MAX, UINT32_MAX, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_EQ(frame_version_pick(cases[i].lo, cases[i].hi), cases[i].want);
}

TEST(an_id_is_read_from_any_address) {
    uint8_t raw[9] = {0xff, 1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff};
    struct frame_ids l = {raw + 1, 2};
    CHECK_EQ(frame_id_at(&l, 0), 0x04030201);
    CHECK_EQ_U64(frame_id_at(&l, 1), 0xffffffff);
    uint32_t v[2] = {7, 1u << 31};
    l = frame_ids_of(v, 2, &arena);
    CHECK_EQ(frame_id_at(&l, 0), 7);
    CHECK_EQ_U64(frame_id_at(&l, 1), 1u << 31);
}

__attribute__((destructor)) static void give_back(void) {
    arena_fini(&arena);
    strbuf_fini(&bytes);
}
