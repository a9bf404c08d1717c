/* bpe: merges the bytes of one piece into token ids, lowest rank first, leftmost among equals.
 *
 * Immutable once filled: any thread. The work area belongs to one call chain at a time. Time is n log n in the
 * piece's bytes. Algorithm: Sennrich et al. 2016, on bytes as in GPT-2. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct ids;
struct bpe;      // defined in bpe.c
struct bpe_work; // defined in bpe.c

// byte_ids: the id of each single byte. merge_count: how many merges will be put, at most.
struct bpe *bpe_new(const uint32_t byte_ids[256], size_t merge_count);
void bpe_free(struct bpe *b); // NULL is fine
// A pair put twice keeps its last rank, as in the reference.
void bpe_put(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged);

struct bpe_work *bpe_work_new(void);
void bpe_work_free(struct bpe_work *w); // NULL is fine
// piece_bytes < 2^31.
void bpe_encode(const struct bpe *b, const char *piece, size_t len, struct bpe_work *w,
                struct ids *out);
