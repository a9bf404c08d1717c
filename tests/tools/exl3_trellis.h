/* exl3_trellis: the coder of EXL3 tiles, the other way round from kernels/linear/exl3_decode.h: finds the ring of 256 states
 * whose values come nearest to 256 given ones, in squared error.
 *
 * Method  Viterbi over the remainders of a state (the bits that the next state keeps), in two passes around the ring: the
 *         first starts at place 128 with every remainder free and only says which remainder enters place 0; the second starts
 *         there and must end there. That is the best ring but for the rare case that the first pass errs.
 * Widths  symbol t has floor((t + 1) B) - floor(t B) bits, so those of a half width take turns.
 * Costs   fp32, summed in the order of the places; of equal ways the one with the smallest symbol. The same bits for every
 *         instruction set.
 *
 * A coder is read by any number of threads; a room belongs to one at a time. */
#pragma once
#include <stdint.h>

#include "kernels/types.h"

enum { TRELLIS_SYMBOLS = 256, TRELLIS_STATES = 65536 };

struct trellis_coder; // tables of one codebook and width
struct trellis_room;  // what one thread works in

struct trellis_coder *trellis_coder_new(enum exl3_codebook codebook, uint32_t half_bits);
void trellis_coder_free(struct trellis_coder *c); // NULL is fine
struct trellis_room *trellis_room_new(void);      // for any coder
void trellis_room_free(struct trellis_room *r);   // NULL is fine

// x: what the values should be, in the order of the symbols. Returns the sum of the squared errors.
double trellis_code(const struct trellis_coder *c, struct trellis_room *r, const float *x,
                    uint16_t *ret_states);
float trellis_value(const struct trellis_coder *c, uint16_t state);
// The tile's 16 * half_bits bytes.
void trellis_pack(const struct trellis_coder *c, const uint16_t *states, uint8_t *ret);
// The deviation that the targets should have: with it the error of normal numbers is least.
double trellis_input_deviation(enum exl3_codebook codebook, uint32_t half_bits);

// Where symbol t stands in its tile: row along the inputs, column along the outputs.
static inline uint32_t trellis_symbol_row(uint32_t t) {
    return 2 * ((t >> 3) & 3) + (t & 1) + 8 * ((t >> 1) & 1);
}
static inline uint32_t trellis_symbol_column(uint32_t t) {
    return (t >> 5) + 8 * ((t >> 2) & 1);
}
