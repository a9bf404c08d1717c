/* mma_step: see mma_step.h. All terms are exact in double, and so is their cut sum: it has at most 33 bits. */
#include "kernels/cuda/mma_step.h"
#include "kernels/cuda/arith.h"

enum {
    ZERO = -100000,  // exponent of 0: below any other, also when two are added
    SPECIAL = 10000, // of infinity and NaN: above any other
    CUT_BITS = 25,
    DOUBLE_BIAS = 1023,
    TERM_MAX = 1 << 28, // of a term in units of the cut
};

static double power_of_two(int32_t e) {
    uint64_t u = (uint64_t)(DOUBLE_BIAS + e) << 52;
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

// The exponent of a finite number's encoding; subnormals count with the smallest normal one.
static int32_t exponent_of(float x, int32_t smallest) {
    if (x == 0) return ZERO;
    if (!(fabsf(x) <= 3.4028234664e38f)) return SPECIAL;
    int32_t e = (int32_t)(arith_bits(x) >> 23 & 255) - 127;
    return e < smallest ? smallest : e;
}

struct mma_one mma_split(uint16_t bits, enum dtype d) {
    float x = d == DTYPE_F16 ? arith_from_f16(bits) : arith_from_bf16(bits);
    return (struct mma_one){x, exponent_of(x, d == DTYPE_F16 ? -14 : -126)};
}

void mma_put(struct mma_vec *v, uint32_t lane, struct mma_one x) {
    v->value[lane] = x.value;
    v->exponent[lane] = x.exponent;
}

// Infinities and NaNs among the terms.
static float special(float sum, const struct mma_vec *a, const struct mma_one *b, uint32_t lane) {
    double s = sum;
    for (uint32_t k = 0; k < MMA_K; k++) s += a[k].value[lane] * b[k].value;
    return s != s ? arith_float(0x7fffffffu) : (float)s;
}

// Toward zero to what fp32 holds.
static float cut(double s) {
    if (fabs(s) >= 0x1p128) return s < 0 ? -HUGE_VALF : HUGE_VALF;
    if (fabs(s) < 0x1p-126) return (float)((double)(int32_t)(s * 0x1p149) * 0x1p-149);
    uint64_t u;
    memcpy(&u, &s, sizeof u);
    u &= ~0x1fffffffull;
    memcpy(&s, &u, sizeof s);
    return (float)s;
}

static float finish(double s, int32_t largest) {
    double r = s * power_of_two(largest - CUT_BITS);
    return r == 0 ? 0.0f : cut(r);
}

void mma_step(float sum[MMA_LANES], const struct mma_vec a[MMA_K], const struct mma_one b[MMA_K]) {
    int32_t largest[MMA_LANES];
    double scale[MMA_LANES], s[MMA_LANES];
    for (int l = 0; l < MMA_LANES; l++) largest[l] = exponent_of(sum[l], -126);
    for (int k = 0; k < MMA_K; k++)
        for (int l = 0; l < MMA_LANES; l++) {
            int32_t e = a[k].exponent[l] + b[k].exponent;
            largest[l] = e > largest[l] ? e : largest[l];
        }
    for (int l = 0; l < MMA_LANES; l++) {
        int32_t e = largest[l] < ZERO / 2 || largest[l] > SPECIAL / 2 ? 0 : largest[l];
        scale[l] = power_of_two(CUT_BITS - e);
        s[l] = e == largest[l] ? (double)(int32_t)(sum[l] * scale[l]) : 0;
    }
    for (int k = 0; k < MMA_K; k++)
        for (int l = 0; l < MMA_LANES; l++) {
            double t = a[k].value[l] * b[k].value * scale[l];
            t = fabs(t) < TERM_MAX ? t : 0; // only where an infinity or a NaN decides
            s[l] += (double)(int32_t)t;
        }
    for (int l = 0; l < MMA_LANES; l++) {
        if (largest[l] > SPECIAL / 2)
            sum[l] = special(sum[l], a, b, (uint32_t)l);
        else
            sum[l] = largest[l] < ZERO / 2 ? 0.0f : finish(s[l], largest[l]);
    }
}

void mma_chain(float ret[MMA_LANES], const struct mma_vec *a, const struct mma_one *b,
               uint32_t steps) {
    for (int l = 0; l < MMA_LANES; l++) ret[l] = 0;
    for (uint32_t i = 0; i < steps; i++) mma_step(ret, a + i * MMA_K, b + i * MMA_K);
}
