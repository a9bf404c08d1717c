/* draft_vocab: the ids that drafts are made of: the head's rows for the others need not be read, and a stream that wants one of them
 * draws it as ever. From a setting, or from the checkpoint's tokeniser. For the start; any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/draft/draft.h"
#include "worker/engine/engine.h"

struct err;

enum {
    // Ids of a BPE vocabulary stand in the order of their merges, common ones first: of what Qwen3.5 says, 99.64% lie below
    // (docs/drafting.md). A multiple of the 128 rows that an EXL3 head is read in.
    DRAFT_VOCAB_COMMON = 98304,
    DRAFT_VOCAB_FILE_BYTES_MAX = 256 << 20, // of tokenizer.json; Qwen3.5's has 20 MB
};

struct draft_vocab {
    bool given;     // by the setting: a drafter's own file has no say
    uint32_t count; // 0: all ids
    struct engine_range spans[DRAFT_PARTS_MAX];
};

// setting: "auto" (or NULL): ids below DRAFT_VOCAB_COMMON and the added ones (tokenizer.json in model_dir; all ids without such a
// file); "all"; or spans "FIRST-LAST,ID,..", ascending, apart, below vocab. ST_INVAL names the setting; ST_IO and ST_CORRUPT the file.
int draft_vocab_make(struct draft_vocab *ret, const char *setting, const char *model_dir,
                     uint32_t vocab, struct err *e);
