/* exl3_search: one place of the coder's search, compiled for each instruction set. Only exl3_trellis.c calls it. */
#pragma once
#include <stdint.h>

enum { SEARCH_BEHIND = 16 }; // floats that a cost row has behind its last, read but not used

struct search_step {
    const float *cost;  // of the remainders before, 2^(16 - bits) and SEARCH_BEHIND more
    float *next;        // of the remainders after, 2^left
    uint8_t *back;      // [2^left]: the top bits of the best state with that remainder
    const float *value; // [2^left / 16][2^(16 - left)][16]: of state k 2^left + 16 block + lane
    float x;
    uint32_t bits; // of this place's symbol
    uint32_t left; // 16 less the bits of the next place's symbol
};

typedef void search_fn(const struct search_step *s);
search_fn search_base, search_avx2, search_avx512;
