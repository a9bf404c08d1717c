/* exl3_search: see exl3_search.h. */
#include "tests/tools/exl3_search.h"
#include "kernels/cpu_vec.h"

#define SEARCH_NAME__(v) search_##v
#define SEARCH_NAME_(v) SEARCH_NAME__(v)

typedef uint8_t vb __attribute__((vector_size(16)));

// The costs before sixteen states that follow one another, the first a multiple of 16.
CPU_INLINE vf costs_before(const float *cost, uint32_t state, const uint32_t bits) {
    if (bits >= 4) return vf_set(cost[state >> bits]);
    vf v = vf_load(cost + (state >> bits));
    if (bits == 3)
        return __builtin_shufflevector(v, v, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    if (bits == 2)
        return __builtin_shufflevector(v, v, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return __builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
}

// bits is a constant at every call.
CPU_INLINE void search(const struct search_step *s, const uint32_t bits) {
    uint32_t remainders = 1u << s->left, symbols = 65536u >> s->left;
    vf x = vf_set(s->x);
    const float *value = s->value;
    for (uint32_t r = 0; r < remainders; r += LANES) {
        vf best = vf_set(__builtin_inff());
        vi top = {0};
        for (uint32_t k = 0; k < symbols; k++, value += LANES) {
            vf d = vf_load(value) - x;
            vf c = costs_before(s->cost, (k << s->left) + r, bits) + d * d;
            vi better = c < best;
            best = vf_select(better, c, best);
            top = (vi)vf_select(better, (vf)((vi){0} + (int32_t)k), (vf)top);
        }
        vb t = __builtin_convertvector(top, vb);
        vf_store(s->next + r, best);
        memcpy(s->back + r, &t, sizeof t);
    }
}

void SEARCH_NAME_(CPU_VARIANT)(const struct search_step *s) {
    switch (s->bits) {
    case 1: search(s, 1); break;
    case 2: search(s, 2); break;
    case 3: search(s, 3); break;
    case 4: search(s, 4); break;
    case 5: search(s, 5); break;
    case 6: search(s, 6); break;
    case 7: search(s, 7); break;
    default: search(s, 8); break;
    }
}
