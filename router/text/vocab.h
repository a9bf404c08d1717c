/* vocab: what each id stands for. Immutable once filled: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VOCAB_USED = 1, VOCAB_ADDED = 2, VOCAB_SPECIAL = 4 };

struct vocab;                           // defined in vocab.c
struct vocab *vocab_new(uint32_t size); // ids 0..size-1, none in use
void vocab_free(struct vocab *v);       // NULL is fine
// Sets the bytes of id < size; flags besides VOCAB_USED. False: the id is in use already.
bool vocab_put(struct vocab *v, uint32_t id, const char *bytes, size_t len, unsigned flags);
void vocab_mark(struct vocab *v, uint32_t id, unsigned flags); // more flags for an id in use
uint32_t vocab_size(const struct vocab *v);
uint32_t vocab_count(const struct vocab *v);                                  // ids in use
unsigned vocab_flags(const struct vocab *v, uint32_t id);                     // 0: not in use
const char *vocab_bytes(const struct vocab *v, uint32_t id, size_t *ret_len); // NULL: not in use
