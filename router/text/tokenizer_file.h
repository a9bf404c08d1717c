/* tokenizer_file: reads a tokenizer.json (Hugging Face format) into the parts of a tokenizer.
 *
 * What the file asks for and we do not do is refused by name: file, key, wanted, found. Start-up only. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct added;
struct bpe;
struct err;
struct pretoken;
struct vocab;

enum {
    TOKENIZER_FILE_BYTES_MAX = 256 << 20, // Qwen3.5's has 20 MB
    TOKENIZER_ID_MAX = (4 << 20) - 1,
    TOKENIZER_TEXT_BYTES_MAX = 64 << 10, // of one token
};

struct tokenizer_parts {
    struct vocab *vocab;
    struct bpe *bpe;
    struct added *added;
    struct pretoken *pretoken;
    bool nfc;
};

// *ret: zeroed by the caller. After a failure it is empty again.
int tokenizer_file_read(const char *path, struct tokenizer_parts *ret, struct err *e);
// The same from memory; name stands for the file in messages.
int tokenizer_file_parse(const char *name, const char *text, size_t len,
                         struct tokenizer_parts *ret, struct err *e);
void tokenizer_parts_fini(struct tokenizer_parts *p);
