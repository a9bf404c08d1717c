/* tokenizer: byte-level BPE read from a tokenizer.json (Hugging Face format), as Qwen3.5 publishes it.
 *
 * Encoding: added tokens are found first, leftmost and longest; the rest is NFC-normalised (utf8proc), split by the
 * file's regex (PCRE2) and merged by rank. Input is valid UTF-8. Immutable after opening: any number of threads may
 * use one tokenizer at once. Format credit: Hugging Face tokenizers; regex and map: GPT-2 / Qwen. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct ids;
struct tokenizer; // defined in tokenizer.c

enum {
    TOKENIZER_INPUT_BYTES_MAX = 256 << 20
}; // of one text: three times as much still has 31-bit offsets

// path: the tokenizer.json itself. Every refusal names the file, the key, what was wanted and found.
int tokenizer_open(struct tokenizer **ret, const char *path, struct err *e);
// The same from memory; name stands for the file in messages.
int tokenizer_parse(struct tokenizer **ret, const char *name, const char *text, size_t len,
                    struct err *e);
void tokenizer_free(struct tokenizer *t); // NULL is fine

struct text_span { // bytes [first, first + len) of a text
    size_t first, len;
};

// Appends the ids of text to out. An added token is recognised only where it touches no byte of a plain span (spans
// ascend and do not overlap): so client text that spells a control token stays text, while all else is cut just as
// if the whole were one string. ST_INVAL: not UTF-8, with the byte offset. ST_UNSUPPORTED: the
// regex takes too many steps on this text (Qwen's does on none). After a failure out is as before.
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                     const struct text_span *plain, size_t plain_count, struct ids *out,
                     struct err *e);

uint32_t tokenizer_size(const struct tokenizer *t);  // highest id in use + 1
uint32_t tokenizer_count(const struct tokenizer *t); // ids in use
bool tokenizer_id_used(const struct tokenizer *t, uint32_t id);
// The bytes the id stands for (an added token's text). NULL: not in use.
const char *tokenizer_bytes(const struct tokenizer *t, uint32_t id, size_t *ret_len);
bool tokenizer_is_added(const struct tokenizer *t, uint32_t id);
bool tokenizer_is_special(const struct tokenizer *t, uint32_t id); // skipped by plain decoding
int64_t tokenizer_find(const struct tokenizer *t,
                       const char *added_token); // id of an added token, -1: none
struct tokenizer_range {                         // ids first..last
    uint32_t first, last;
};
// The ids in use as ascending ranges, at most cap of them (ret may be NULL when cap is 0). Returns how many there are.
size_t tokenizer_used_ranges(const struct tokenizer *t, struct tokenizer_range *ret, size_t cap);
// Whole decoding, bad bytes as U+FFFD.
struct strbuf;
void tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t count,
                      bool skip_special, struct strbuf *out);
