/* exl3_trellis: see exl3_trellis.h. */
#include "tests/tools/exl3_trellis.h"
#include "common/mem.h"
#include "kernels/linear/exl3_decode.h"
#include "kernels/ops.h"
#include "tests/tools/exl3_search.h"

#include <assert.h>
#include <stdlib.h>

enum { SIZES = 2 }; // of symbols in one width

struct trellis_coder {
    uint32_t half_bits;
    search_fn *step;
    float value[TRELLIS_STATES]; // by state
    float laid
        [SIZES]
        [TRELLIS_STATES]; // as search_step wants it, for symbols of floor(B) and of ceil(B) bits
};

struct trellis_room {
    float cost[2][TRELLIS_STATES / 2 + SEARCH_BEHIND];
    uint8_t back[TRELLIS_SYMBOLS][TRELLIS_STATES / 2];
};

static uint32_t symbol_bits(const struct trellis_coder *c, uint32_t t) {
    t %= TRELLIS_SYMBOLS;
    return (t + 1) * c->half_bits / 2 - t * c->half_bits / 2;
}

static search_fn *fastest_step(void) {
    search_fn *step = search_base;
#ifdef CPU_HAVE_X86
    for (const char *const *v = ops_cpu_variants(); *v; v++) {
        if (!strcmp(*v, "avx2")) step = search_avx2;
        if (!strcmp(*v, "avx512")) step = search_avx512;
    }
#endif
    return step;
}

static void fill_values(float *ret, enum exl3_codebook codebook) {
    for (uint32_t s = 0; s < TRELLIS_STATES; s += LANES) {
        vu state;
        for (uint32_t i = 0; i < LANES; i++) state[i] = s + i;
        vf v = codebook == EXL3_MUL1  ? exl3_value(state, EXL3_MUL1)
               : codebook == EXL3_MCG ? exl3_value(state, EXL3_MCG)
                                      : exl3_value(state, EXL3_3INST);
        vf_store(ret + s, v);
    }
}

struct trellis_coder *trellis_coder_new(enum exl3_codebook codebook, uint32_t half_bits) {
    assert(half_bits >= EXL3_HALF_BITS_MIN && half_bits <= EXL3_HALF_BITS_MAX);
    struct trellis_coder *c = mem_alloc(sizeof *c);
    c->half_bits = half_bits;
    c->step = fastest_step();
    fill_values(c->value, codebook);
    for (uint32_t z = 0; z < SIZES; z++) {
        uint32_t left = 16 - (half_bits + z) / 2, symbols = TRELLIS_STATES >> left;
        for (uint32_t s = 0; s < TRELLIS_STATES; s++) {
            uint32_t k = s >> left, r = s & ((1u << left) - 1);
            c->laid[z][(r / LANES * symbols + k) * LANES + r % LANES] = c->value[s];
        }
    }
    return c;
}

void trellis_coder_free(struct trellis_coder *c) {
    free(c);
}

struct trellis_room *trellis_room_new(void) {
    return mem_calloc(1, sizeof(struct trellis_room));
}

void trellis_room_free(struct trellis_room *r) {
    free(r);
}

float trellis_value(const struct trellis_coder *c, uint16_t state) {
    return c->value[state];
}

enum { ANY = -1 };

/* Once around the ring from place `first`. `entering`: the remainder that both ends must have, or ANY. Fills states, and
 * returns the remainder that enters place 0. */
static uint32_t walk(const struct trellis_coder *c, struct trellis_room *r, const float *x,
                     uint32_t first, int32_t entering, uint16_t *states) {
    uint32_t count = TRELLIS_STATES >> symbol_bits(c, first);
    for (uint32_t i = 0; i < count; i++) r->cost[0][i] = entering == ANY ? 0 : __builtin_inff();
    if (entering != ANY) r->cost[0][entering] = 0;
    for (uint32_t i = 0; i < TRELLIS_SYMBOLS; i++) {
        uint32_t t = (first + i) % TRELLIS_SYMBOLS, after = symbol_bits(c, t + 1);
        c->step(&(struct search_step){.cost = r->cost[i % 2],
                                      .next = r->cost[(i + 1) % 2],
                                      .back = r->back[t],
                                      .value = c->laid[after != c->half_bits / 2],
                                      .x = x[t],
                                      .bits = symbol_bits(c, t),
                                      .left = 16 - after});
    }
    uint32_t at = 0, entry = 0;
    if (entering != ANY)
        at = (uint32_t)entering;
    else
        for (uint32_t i = 1; i < count; i++)
            if (r->cost[0][i] < r->cost[0][at]) at = i;
    for (uint32_t i = TRELLIS_SYMBOLS; i-- > 0;) {
        uint32_t t = (first + i) % TRELLIS_SYMBOLS;
        uint32_t state = (uint32_t)r->back[t][at] << (16 - symbol_bits(c, t + 1)) | at;
        states[t] = (uint16_t)state;
        at = state >> symbol_bits(c, t);
        if (t == 0) entry = at;
    }
    return entry;
}

double trellis_code(const struct trellis_coder *c, struct trellis_room *r, const float *x,
                    uint16_t *ret_states) {
    uint32_t entry = walk(c, r, x, TRELLIS_SYMBOLS / 2, ANY, ret_states);
    walk(c, r, x, 0, (int32_t)entry, ret_states);
    double sum = 0;
    for (uint32_t t = 0; t < TRELLIS_SYMBOLS; t++) {
        uint32_t next = (t + 1) % TRELLIS_SYMBOLS, bits = symbol_bits(c, next);
        assert(ret_states[next] >> bits == (ret_states[t] & ((TRELLIS_STATES >> bits) - 1)));
        double d = (double)c->value[ret_states[t]] - (double)x[t];
        sum += d * d;
    }
    return sum;
}

void trellis_pack(const struct trellis_coder *c, const uint16_t *states, uint8_t *ret) {
    memset(ret, 0, exl3_tile_bytes(c->half_bits));
    for (uint32_t t = 0; t < TRELLIS_SYMBOLS; t++) {
        uint32_t end = (t + 1) * c->half_bits / 2, bits = symbol_bits(c, t);
        for (uint32_t i = 0; i < bits; i++) {
            uint32_t bit = end - 1 - i, word = bit / 32, place = 31 - bit % 32;
            if (states[t] >> i & 1) ret[4 * word + place / 8] |= (uint8_t)(1u << place % 8);
        }
    }
}

double trellis_input_deviation(enum exl3_codebook codebook, uint32_t half_bits) {
    // Measured on normal numbers: the deviation with the least error, for 1 to 8 bits; half widths lie between.
    static const double mul1[] = {1.1, 1.0, 0.95, 0.9, 0.8, 0.78, 0.8, 0.8};
    static const double other[] = {1.3, 1.25, 1.18, 1.05, 1.0, 0.97, 1.0, 1.0};
    const double *table = codebook == EXL3_MUL1 ? mul1 : other;
    return (table[half_bits / 2 - 1] + table[(half_bits + 1) / 2 - 1]) / 2;
}
