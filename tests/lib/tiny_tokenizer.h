/* tiny_tokenizer: a tokenizer.json small enough to read: byte b has id b, then some words, then added tokens.
 *
 * Ids 0..255 bytes; TINY_WORDS.. words in the order of tiny_words; ids between them and TINY_IM_END are not in use. */
#pragma once
#include "common/err.h"
#include "common/strbuf.h"
#include "router/text/tokenizer.h"
#include "router/text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TINY_WORDS = 256,
    TINY_IM_END = 300, // special
    TINY_THINK,
    TINY_END_THINK,
    TINY_CALL,
    TINY_END_CALL,
    TINY_IM_ENDS, // "<|im_end|>s": longer than its prefix
    TINY_SIZE,
};

// Bytes of the words; those with a rank are merges of two earlier ones.
static const char *const tiny_words[] = {
    "th",
    "the",
    " the",
    "\n\n",
    "\xE4\xB8",
    "\xAD\xE6",
    "\xF0\x9F",
    "\x98\x80",
    "STO",
    "OP",
    "P!",
    "aa",
    "aaa",
    "ab",
    "aba",
    "\xE2\x80\x8D",
    "\x8D\xF0\x9F\x91",
    "\xA9\xE2",
    ".\n",
    "\n\n\n",
    "in",
    "ing",
};
enum { TINY_WORD_COUNT = sizeof tiny_words / sizeof tiny_words[0] };

static const char tiny_regex[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}"
    "| ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+";

// The JSON text of bytes in the byte characters of GPT-2.
static inline void tiny_add_bytes(struct strbuf *out, const char *bytes, size_t len) {
    for (size_t i = 0; i < len; i++) {
        unsigned b = (unsigned char)bytes[i];
        uint32_t cp = 0x100;
        for (unsigned k = 0; k < b; k++)
            cp += !((k >= 0x21 && k <= 0x7E) || (k >= 0xA1 && k <= 0xAC) || k >= 0xAE);
        if ((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE) cp = b;
        if (cp == '"' || cp == '\\') strbuf_add_char(out, '\\');
        utf8_add(out, cp);
    }
}

static inline void tiny_add_vocab(struct strbuf *out) {
    strbuf_add_str(out, "{");
    for (unsigned b = 0; b < 256; b++) {
        char byte = (char)b;
        strbuf_add_str(out, b ? ",\"" : "\"");
        tiny_add_bytes(out, &byte, 1);
        strbuf_printf(out, "\":%u", b);
    }
    for (unsigned i = 0; i < TINY_WORD_COUNT; i++) {
        strbuf_add_str(out, ",\"");
        tiny_add_bytes(out, tiny_words[i], strlen(tiny_words[i]));
        strbuf_printf(out, "\":%u", TINY_WORDS + i);
    }
    strbuf_add_str(out, "}");
}

static inline void tiny_add_added(struct strbuf *out) {
    static const char *const text[] = {"<|im_end|>",  "<think>",      "</think>",
                                       "<tool_call>", "</tool_call>", "<|im_end|>s"};
    for (unsigned i = 0; i < sizeof text / sizeof text[0]; i++)
        strbuf_printf(out,
                      "%s{\"id\":%u,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                      "\"rstrip\":false,\"normalized\":false,\"special\":%s}",
                      i ? "," : "", TINY_IM_END + i, text[i], i ? "false" : "true");
}

// The file's text. merges: a JSON array, NULL for some of the words above.
static inline void tiny_tokenizer_text(struct strbuf *out, const char *merges) {
    strbuf_add_str(out,
                   "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    tiny_add_added(out);
    strbuf_printf(
        out,
        "],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
        "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},"
        "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}]},"
        "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":"
        "\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\","
        "\"end_of_word_suffix\":\"\",\"fuse_unk\":false,\"byte_fallback\":false,"
        "\"ignore_merges\":false,\"vocab\":",
        tiny_regex);
    tiny_add_vocab(out);
    strbuf_printf(out, ",\"merges\":%s}}",
                  merges ? merges
                         : "[\"t h\",\"th e\",[\"\xC4\xA0\",\"the\"],\"a a\",\"a b\",\"aa a\","
                           "\"ab a\",\"i n\",\"in g\"]");
}

static inline struct tokenizer *tiny_tokenizer(void) {
    struct strbuf text = {0};
    struct tokenizer *t = NULL;
    struct err e = {0};
    tiny_tokenizer_text(&text, NULL);
    if (tokenizer_parse(&t, "tiny", text.p, text.len, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        abort();
    }
    strbuf_fini(&text);
    return t;
}
