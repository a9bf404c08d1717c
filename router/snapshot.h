/* snapshot: the state of the workers and the queue as the request loop last published it, for the ops thread.
 *
 * One writer (the request loop) and one reader (the ops thread) pass three buffers around: neither ever waits, and a
 * reader sees a whole snapshot however long the writer has been stuck. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backends;
struct config;

enum {
    SNAPSHOT_WORKERS_MAX = 64,
    SNAPSHOT_TEXT_BYTES = 128,
    SNAPSHOT_FAULTS_BYTES = 256,   // of all workers, for clients
    SNAPSHOT_REASONS_BYTES = 1024, // for operators
    SNAPSHOT_PARTS_MAX = 32,
    SNAPSHOT_PART_BYTES = 48
};

struct snapshot_worker {
    uint32_t rank, generation;
    int state; // enum backend_state
    uint32_t pid;
    bool supervised;
    char fault[SNAPSHOT_PART_BYTES]; // "": none; see backend_info
    char name[SNAPSHOT_TEXT_BYTES], model[SNAPSHOT_TEXT_BYTES], reason[2 * SNAPSHOT_TEXT_BYTES];
    char version[SNAPSHOT_TEXT_BYTES];
    char gpu_name[SNAPSHOT_TEXT_BYTES], gpu_uuid[SNAPSHOT_TEXT_BYTES], gpu_pci[SNAPSHOT_TEXT_BYTES];
    char fingerprint[9]; // 8 hex of all its parts; "" until it is whole
    char checkpoint[SNAPSHOT_TEXT_BYTES], device[SNAPSHOT_TEXT_BYTES]; // two of the parts
    uint32_t context_max;
    uint32_t streams_running, streams_max, room, streams_sent;
    uint32_t pinned; // choices that wait in the router for this worker alone
    uint32_t queue_requests;
    uint64_t queue_tokens;
    uint32_t kv_blocks_used, kv_blocks_total, kv_block_tokens;
    uint64_t kept_prefix_tokens;
    double fill_tokens_per_s, round_ms;
    char embedding[SNAPSHOT_TEXT_BYTES]; // where its rows are and why
    struct {
        char name[SNAPSHOT_PART_BYTES];
        uint64_t bytes;
    } memory[SNAPSHOT_PARTS_MAX];
    uint32_t memory_count;
    uint64_t restarts, rounds, tokens, prompt_tokens;
    uint64_t since_ms, last_progress_ms; // monotonic
    uint64_t up_ms;                      // since it joined
};

struct snapshot {
    const struct config *config; // in effect; stands until the router ends
    bool draining, ever_ready;
    bool ending;             // it drains because it ends
    uint32_t ready, loading; // workers
    uint32_t total;          // that are there, or that this router starts
    double wait_predicted_s;
    uint32_t worker_count; // ranks that a worker has or had
    struct snapshot_worker workers[SNAPSHOT_WORKERS_MAX];
};

struct snapshots; // defined in snapshot.c
struct snapshots *snapshots_new(void);
void snapshots_free(struct snapshots *s);

struct snapshot *snapshots_begin(struct snapshots *s); // writer: the buffer to fill, zeroed
void snapshots_publish(struct snapshots *s);           // writer
const struct snapshot *snapshots_own(const struct snapshots *s); // writer: what it published last
const struct snapshot *snapshots_read(struct snapshots *s); // reader: stands until its next call

// Sign of life of the writer's loop, in monotonic ms. Any thread.
void snapshots_beat(struct snapshots *s, uint64_t now_ms);
uint64_t snapshots_last_beat_ms(const struct snapshots *s);

enum snapshot_reader {
    SNAPSHOT_CLIENT,  // gets words without a path in them
    SNAPSHOT_OPERATOR // gets each worker's own last reason
};

// Why workers are not there: "workers 0, 2: its device has failed; worker 1: killed by signal 9". "": none has failed.
void snapshot_fault(const struct snapshot *s, enum snapshot_reader reader, char *ret,
                    size_t ret_bytes);

// Fills the workers' part from the set. Writer's thread.
void snapshot_fill_workers(struct snapshot *s, struct backends *backends);
