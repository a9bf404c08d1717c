/* op_cases: see op_cases.h. Inputs come from a hash of (what, index), rounded to what the operation reads; references are
 * the formulas of the operations' headers in double, written without regard to speed. */
#include "tests/lib/op_cases.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/attn/attn.h"
#include "kernels/attn/kv_append.h"
#include "kernels/cuda/kv_at.h"
#include "kernels/delta/delta_commit.h"
#include "kernels/delta/delta_mix_parts.h"
#include "kernels/embed/embed.h"
#include "kernels/linear/linear.h"
#include "kernels/mlp/swiglu.h"
#include "kernels/moe/expert_sum.h"
#include "kernels/moe/experts.h"
#include "kernels/moe/router.h"
#include "kernels/norm/rmsnorm.h"
#include "kernels/ops.h"
#include "kernels/rope/rope.h"
#include "kernels/sample/draw.h"
#include "kernels/sample/sample.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { F32 = sizeof(float), SLOTS = 3, STALE = 7 };
static const float norm_eps = 1e-6f;

// In [-1, 1), with few enough bits to be exact in every type.
static float value(uint32_t what, uint64_t i) {
    return (float)((int)(mix_u64((uint64_t)what << 40 ^ (i + 1)) >> 57) - 64) / 64.0f;
}

// Finer: 24 bits.
static float fine(uint32_t what, uint64_t i) {
    return (float)((int32_t)(mix_u64((uint64_t)what << 40 ^ (i + 1)) >> 39) - (1 << 24)) /
           (1 << 24);
}

struct buf {
    devptr p;
    uint64_t bytes;
};

static struct buf buf_new(const struct ops *o, uint64_t bytes) {
    struct buf b = {.bytes = bytes};
    struct err e;
    CHECK_OK(o->alloc(o->ctx, bytes, "test", &b.p, &e), e);
    return b;
}

static void buf_free(const struct ops *o, struct buf *b) {
    o->free(o->ctx, b->p, b->bytes);
}

static struct buf buf_of(const struct ops *o, const void *p, uint64_t bytes) {
    struct buf b = buf_new(o, bytes);
    o->write(o->ctx, b.p, p, bytes);
    return b;
}

static struct buf buf_fine(const struct ops *o, uint32_t what, uint64_t count) {
    float *v = mem_alloc(count * F32);
    for (uint64_t i = 0; i < count; i++) v[i] = fine(what, i);
    struct buf b = buf_of(o, v, count * F32);
    free(v);
    return b;
}

static void get(const struct ops *o, float *ret, const struct buf *b, uint64_t count) {
    struct err e;
    o->read(o->ctx, ret, b->p, count * F32);
    CHECK_OK(o->sync(o->ctx, &e), e);
}

// A weight of `value`s, in the type asked for.
static struct buf weight_of(const struct ops *o, struct weight *ret, uint32_t what, uint32_t rows,
                            uint32_t cols, enum dtype d) {
    uint64_t n = (uint64_t)rows * cols;
    char *raw = mem_calloc(n, dtype_bytes(d));
    for (uint64_t i = 0; i < n; i++) {
        float x = value(what, i);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (d == DTYPE_F32) memcpy(raw + i * 4, &bits, 4);
        uint16_t h = (uint16_t)(bits >> 16);
        if (d == DTYPE_F16) // exact: values are multiples of 1/64 up to 1
            h = (uint16_t)(x == 0 ? 0
                                  : (bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) |
                                        (bits >> 13 & 1023));
        if (d != DTYPE_F32) memcpy(raw + i * 2, &h, 2);
    }
    struct buf b = buf_of(o, raw, n * dtype_bytes(d));
    *ret = (struct weight){.data = b.p, .dtype = d, .rows = rows, .cols = cols};
    free(raw);
    return b;
}

/* linear: T, K, N of the first part, N of the second (added to what is there), dtype */
static void run_linear(const struct ops *o, const struct op_case *c, uint32_t schedule,
                       float *ret) {
    uint32_t t = c->size[0], k = c->size[1], n = c->size[2], n2 = c->size[3];
    struct linear_args a = {.rows = t, .parts_count = n2 ? 2 : 1};
    struct buf x = buf_fine(o, 1, (uint64_t)t * k), y = buf_new(o, (uint64_t)t * n * F32);
    struct buf w = weight_of(o, &a.parts[0].w, 2, n, k, (enum dtype)c->size[4]), w2, y2;
    a.x = x.p;
    a.parts[0].y = y.p;
    if (n2) {
        w2 = weight_of(o, &a.parts[1].w, 3, n2, k, (enum dtype)c->size[4]);
        y2 = buf_fine(o, 4, (uint64_t)t * n2);
        a.parts[1].y = y2.p;
        a.parts[1].add = true;
    }
    if (!schedule) {
        o->linear(o->ctx, &a);
    } else { // row by row
        a.rows = 1;
        for (uint32_t i = 0; i < t; i++) {
            a.x = x.p + (uint64_t)i * k * F32;
            a.parts[0].y = y.p + (uint64_t)i * n * F32;
            if (n2) a.parts[1].y = y2.p + (uint64_t)i * n2 * F32;
            o->linear(o->ctx, &a);
        }
    }
    get(o, ret, &y, (uint64_t)t * n);
    if (n2) {
        get(o, ret + (uint64_t)t * n, &y2, (uint64_t)t * n2);
        buf_free(o, &w2);
        buf_free(o, &y2);
    }
    buf_free(o, &x);
    buf_free(o, &y);
    buf_free(o, &w);
}

static void ref_linear(const struct op_case *c, double *ret) {
    uint32_t t = c->size[0], k = c->size[1], n[2] = {c->size[2], c->size[3]};
    for (uint32_t p = 0; p < 2; p++)
        for (uint32_t i = 0; i < t; i++)
            for (uint32_t j = 0; j < n[p]; j++) {
                double s = p ? fine(4, (uint64_t)i * n[1] + j) : 0;
                for (uint32_t l = 0; l < k; l++)
                    s += (double)fine(1, (uint64_t)i * k + l) * value(2 + p, (uint64_t)j * k + l);
                *ret++ = s;
            }
}

/* exl3: T, K, N, twice the bits, codebook, EXL3_.. of op_cases.h. As the linear layer has them: [y1 = x W1, y2 += x W1],
 * and plain parts beside them that must not notice: bf16 of 5 outputs, f16 of 21. */
static float exl3_input(const struct op_case *c, uint64_t row, uint32_t k) {
    float x = fine(1, row * c->size[1] + k);
    if (c->size[5] & EXL3_NORMAL)
        for (uint32_t i = 0; i < 7; i++) x += fine(36 + i, row * c->size[1] + k);
    if (c->size[5] & EXL3_FIFTY && k == 77) x *= 50;
    if (c->size[5] & EXL3_CHANNEL && k == 77) x *= 1000;
    if (!(c->size[5] & EXL3_ROW)) return x;
    if (row % 4 == 1) return 0;
    if (k == 99 && row % 4 == 2) return NAN;
    return k == 99 && row % 4 == 3 ? INFINITY : x;
}

static uint16_t *exl3_words(uint32_t what, uint64_t count) {
    uint16_t *w = mem_alloc(count * sizeof *w);
    for (uint64_t i = 0; i < count; i++) w[i] = (uint16_t)mix_u64((uint64_t)what << 40 ^ (i + 1));
    return w;
}

// Signs times 1, 1.25, 1.5 or 1.75, as fp16.
static uint16_t exl3_factor(uint32_t what, uint64_t i) {
    uint64_t r = mix_u64((uint64_t)what << 40 ^ (i + 1));
    return (uint16_t)((r & 1) << 15 | 0x3c00 | (r >> 1 & 3) << 8);
}

static double exl3_factor_value(uint32_t what, uint64_t i) {
    uint16_t h = exl3_factor(what, i);
    return (h & 0x8000 ? -1 : 1) * (1 + (h >> 8 & 3) / 4.0);
}

static struct buf exl3_factors(const struct ops *o, uint32_t what, uint32_t count) {
    uint16_t *f = mem_alloc(count * sizeof *f);
    for (uint32_t i = 0; i < count; i++) f[i] = exl3_factor(what, i);
    struct buf b = buf_of(o, f, count * sizeof *f);
    free(f);
    return b;
}

struct exl3_bufs {
    struct buf trellis, suh, svh, bias, plain, other, x, scale, up, made, y[4];
};

static struct linear_from exl3_from(const struct op_case *c, const struct exl3_bufs *b) {
    struct linear_from f = {.maker = LINEAR_AS_IT_IS};
    if (c->size[5] & EXL3_NORM)
        f = (struct linear_from){
            .maker = LINEAR_NORM, .eps = norm_eps, .x = b->x.p, .other = b->scale.p};
    if (c->size[5] & EXL3_SWIGLU)
        f = (struct linear_from){.maker = LINEAR_SWIGLU, .x = b->x.p, .other = b->up.p};
    return f;
}

static void exl3_args(const struct ops *o, const struct op_case *c, struct exl3_bufs *b,
                      struct linear_args *a) {
    uint32_t t = c->size[0], k = c->size[1], n = c->size[2], half_bits = c->size[3];
    uint64_t words = (uint64_t)k * n * half_bits / 32;
    uint16_t *w = exl3_words(30, words);
    struct weight plain, other;
    b->trellis = buf_of(o, w, words * sizeof *w);
    b->suh = exl3_factors(o, 31, k);
    b->svh = exl3_factors(o, 32, n);
    b->bias = buf_fine(o, 33, n);
    b->plain = weight_of(o, &plain, 34, 5, k, DTYPE_BF16);
    // Of input 99, which may be a NaN, no weight is 0: a twin drops such products.
    b->other = weight_of(o, &other, 39, 21, k, DTYPE_F16);
    float *x = mem_alloc((uint64_t)t * k * F32);
    for (uint64_t i = 0; i < (uint64_t)t * k; i++) x[i] = exl3_input(c, i / k, (uint32_t)(i % k));
    b->x = buf_of(o, x, (uint64_t)t * k * F32);
    free(x);
    b->y[0] = buf_new(o, (uint64_t)t * n * F32);
    b->y[1] = buf_new(o, (uint64_t)t * 5 * F32);
    b->y[2] = buf_fine(o, 35, (uint64_t)t * n);
    b->y[3] = buf_fine(o, 38, (uint64_t)t * 21);
    struct exl3 q = {half_bits, (enum exl3_codebook)c->size[4],         b->suh.p,
                     b->svh.p,  c->size[5] & EXL3_BIAS ? b->bias.p : 0, 0};
    struct weight quant = {.data = b->trellis.p, .rows = n, .cols = k, .exl3 = q};
    b->scale = buf_fine(o, 36, k);
    b->up = buf_fine(o, 37, (uint64_t)t * k);
    b->made = buf_new(o, (uint64_t)t * k * F32);
    *a = (struct linear_args){.x = b->x.p, .rows = t, .from = exl3_from(c, b), .parts_count = 4};
    a->parts[0] = (struct linear_part){.w = quant, .y = b->y[0].p};
    a->parts[1] = (struct linear_part){.w = plain, .y = b->y[1].p};
    a->parts[2] = (struct linear_part){.w = quant, .y = b->y[2].p, .add = true};
    a->parts[3] = (struct linear_part){.w = other, .y = b->y[3].p, .add = true};
    if (c->size[5] & EXL3_OTHER) a->parts[2].w.exl3.codebook = EXL3_3INST;
    free(w);
}

static void exl3_free(const struct ops *o, struct exl3_bufs *b) {
    struct buf *more[] = {&b->other, &b->scale, &b->up, &b->made};
    for (uint32_t p = 0; p < 4; p++) {
        buf_free(o, &b->y[p]);
        buf_free(o, more[p]);
    }
    buf_free(o, &b->trellis);
    buf_free(o, &b->suh);
    buf_free(o, &b->svh);
    buf_free(o, &b->bias);
    buf_free(o, &b->plain);
    buf_free(o, &b->x);
}

static void run_exl3(const struct ops *o, const struct op_case *c, uint32_t schedule, float *ret) {
    uint32_t t = c->size[0], step = schedule ? schedule : t;
    struct exl3_bufs b;
    struct linear_args a;
    exl3_args(o, c, &b, &a);
    for (uint32_t i = 0; i < t; i += step) { // schedule rows a call
        uint64_t at = (uint64_t)i * c->size[1] * F32;
        struct linear_args call = a;
        call.rows = min_u32(step, t - i);
        call.x = (a.from.maker == LINEAR_NORM ? b.made.p : b.x.p) + at;
        call.from.x = b.x.p + at;
        if (a.from.maker == LINEAR_SWIGLU) call.from.other = b.up.p + at;
        for (uint32_t p = 0; p < 4; p++)
            call.parts[p].y = b.y[p].p + (uint64_t)i * a.parts[p].w.rows * F32;
        if (c->size[5] & EXL3_ALONE) {
            call.parts[1] = call.parts[2];
            call.parts_count = 2;
        }
        o->linear(o->ctx, &call);
    }
    for (uint32_t p = 0; p < 4; p++) {
        uint64_t count = (uint64_t)t * a.parts[p].w.rows;
        get(o, ret, &b.y[p], count);
        ret += count;
    }
    exl3_free(o, &b);
}

// The value of a state, by the format's definition.
static double exl3_state_value(uint32_t s, enum exl3_codebook codebook) {
    if (codebook == EXL3_MUL1) {
        uint32_t x = s * 0x83dcd12du;
        double v =
            (1774.0 * ((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)) - 905216) / 262144;
        int e;
        frexp(v, &e);
        return ldexp(nearbyint(ldexp(v, 11 - e)), e - 11);
    }
    uint32_t x = codebook == EXL3_MCG ? s * 0xcbac1fedu : s * 89226354u + 64248484u;
    double sum = 0;
    x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    for (int i = 0; i < 2; i++, x >>= 16)
        sum += (x & 0x8000 ? -1 : 1) * ldexp(1024 + (x & 1023), (int)(x >> 10 & 31) - 25);
    int e;
    frexp(sum, &e);
    return ldexp(nearbyint(ldexp(sum, 11 - e)), e - 11);
}

// Decoded, in [K, N].
static double *exl3_matrix(uint32_t what, uint32_t k, uint32_t n, uint32_t half_bits,
                           enum exl3_codebook codebook) {
    uint32_t ring = 128 * half_bits;
    uint16_t *words = exl3_words(what, (uint64_t)k * n * half_bits / 32);
    double *m = mem_alloc((size_t)k * n * sizeof *m);
    for (uint32_t tile = 0; tile < k / 16 * (n / 16); tile++) {
        const uint16_t *w = words + (uint64_t)tile * ring / 16;
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t state = 0, lane = i >> 3, end = (i + 1) * half_bits / 2;
            for (uint32_t b = 16; b > 0; b--) {
                uint32_t at = (end + ring - b) % ring;
                state = state << 1 | (w[at / 16 ^ 1] >> (15 - at % 16) & 1u);
            }
            uint32_t row = tile / (n / 16) * 16 + 2 * (lane & 3) + (i & 1) + 8 * (i >> 1 & 1);
            uint32_t col = tile % (n / 16) * 16 + (lane >> 2) + 8 * (i >> 2 & 1);
            m[(size_t)row * n + col] = exl3_state_value(state, codebook);
        }
    }
    free(words);
    return m;
}

static void exl3_rotate(double *v, uint32_t count) {
    for (uint32_t first = 0; first < count; first += 128) {
        double in[128];
        memcpy(in, v + first, sizeof in);
        for (uint32_t i = 0; i < 128; i++) {
            v[first + i] = 0;
            for (uint32_t j = 0; j < 128; j++)
                v[first + i] += (__builtin_popcount(i & j) % 2 ? -in[j] : in[j]) / sqrt(128);
        }
    }
}

// A row x, rotated, times m in [K, N], rotated.
static void ref_exl3_row(const struct op_case *c, const double *m, const double *x, double *y) {
    uint32_t k = c->size[1], n = c->size[2];
    memset(y, 0, n * sizeof *y);
    for (uint32_t i = 0; i < k; i++)
        for (uint32_t j = 0; j < n; j++) y[j] += x[i] * m[(size_t)i * n + j];
    exl3_rotate(y, n);
    for (uint32_t j = 0; j < n; j++)
        y[j] = y[j] * exl3_factor_value(32, j) + (c->size[5] & EXL3_BIAS ? fine(33, j) : 0);
}

static double ref_silu(double x) {
    return x / (1 + exp(-x));
}

static double ref_factor(const double *x, uint32_t n, double count, double eps) {
    double s = 0;
    for (uint32_t i = 0; i < n; i++) s += x[i] * x[i];
    return 1 / sqrt(s / count + eps);
}

// A row as the call makes it.
static void ref_exl3_made(const struct op_case *c, uint32_t row, double *x) {
    uint32_t k = c->size[1];
    for (uint32_t i = 0; i < k; i++) x[i] = exl3_input(c, row, i);
    double f = c->size[5] & EXL3_NORM ? ref_factor(x, k, k, norm_eps) : 1;
    for (uint32_t i = 0; i < k; i++) {
        if (c->size[5] & EXL3_NORM) x[i] = x[i] * f * fine(36, i);
        if (c->size[5] & EXL3_SWIGLU) x[i] = ref_silu(x[i]) * fine(37, (uint64_t)row * k + i);
    }
}

static void ref_exl3(const struct op_case *c, double *ret) {
    uint32_t t = c->size[0], k = c->size[1], n = c->size[2];
    enum exl3_codebook first = (enum exl3_codebook)c->size[4];
    enum exl3_codebook second = c->size[5] & EXL3_OTHER ? EXL3_3INST : first;
    double *m = exl3_matrix(30, k, n, c->size[3], first);
    double *m2 = exl3_matrix(30, k, n, c->size[3], second);
    double *x = mem_alloc(k * sizeof *x), *made = mem_alloc(k * sizeof *made);
    double *plain = ret + (size_t)t * n, *added = plain + (size_t)t * 5;
    double *other = added + (size_t)t * n;
    for (uint32_t r = 0; r < t; r++) {
        ref_exl3_made(c, r, made);
        for (uint32_t i = 0; i < k; i++) x[i] = made[i] * exl3_factor_value(31, i);
        exl3_rotate(x, k);
        ref_exl3_row(c, m, x, ret + (size_t)r * n);
        ref_exl3_row(c, m2, x, added + (size_t)r * n);
        for (uint32_t j = 0; j < n; j++) added[(size_t)r * n + j] += fine(35, (uint64_t)r * n + j);
        for (uint32_t j = 0; j < 5; j++) {
            double s = 0;
            for (uint32_t i = 0; i < k && !(c->size[5] & EXL3_ALONE); i++)
                s += made[i] * value(34, (uint64_t)j * k + i);
            plain[r * 5 + j] = s;
        }
        for (uint32_t j = 0; j < 21; j++) {
            double s = fine(38, (uint64_t)r * 21 + j);
            for (uint32_t i = 0; i < k && !(c->size[5] & EXL3_ALONE); i++)
                s += made[i] * value(39, (uint64_t)j * k + i);
            other[r * 21 + j] = s;
        }
    }
    free(m);
    free(m2);
    free(x);
    free(made);
}

/* embed: T, D, V, -, dtype */
static void run_embed(const struct ops *o, const struct op_case *c, uint32_t schedule, float *ret) {
    uint32_t t = c->size[0], d = c->size[1], *ids = mem_alloc(t * sizeof *ids);
    struct embed_args a = {.rows = t};
    for (uint32_t i = 0; i < t; i++) ids[i] = (uint32_t)(mix_u64(i + 5) % c->size[2]);
    struct buf w = weight_of(o, &a.table, 5, c->size[2], d, (enum dtype)c->size[4]);
    struct buf list = buf_of(o, ids, t * sizeof *ids), x = buf_new(o, (uint64_t)t * d * F32);
    a.ids = list.p;
    a.x = x.p;
    o->embed(o->ctx, &a);
    get(o, ret, &x, (uint64_t)t * d);
    buf_free(o, &w);
    buf_free(o, &list);
    buf_free(o, &x);
    free(ids);
}

static void ref_embed(const struct op_case *c, double *ret) {
    for (uint32_t i = 0; i < c->size[0]; i++)
        for (uint32_t d = 0; d < c->size[1]; d++)
            *ret++ = value(5, mix_u64(i + 5) % c->size[2] * c->size[1] + d);
}

/* rmsnorm: rows picked, D, rows there are */
static void run_rmsnorm(const struct ops *o, const struct op_case *c, uint32_t schedule,
                        float *ret) {
    uint32_t t = c->size[0], d = c->size[1], *pick = mem_alloc(t * sizeof *pick);
    for (uint32_t i = 0; i < t; i++) pick[i] = (uint32_t)(mix_u64(i) % c->size[2]);
    struct buf x = buf_fine(o, 6, (uint64_t)c->size[2] * d), s = buf_fine(o, 7, d);
    struct buf list = buf_of(o, pick, t * sizeof *pick), y = buf_new(o, (uint64_t)t * d * F32);
    struct rmsnorm_args a = {
        .x = x.p, .scale = s.p, .pick = list.p, .y = y.p, .rows = t, .dim = d, .eps = norm_eps};
    o->rmsnorm(o->ctx, &a);
    get(o, ret, &y, (uint64_t)t * d);
    buf_free(o, &x);
    buf_free(o, &s);
    buf_free(o, &list);
    buf_free(o, &y);
    free(pick);
}

static void ref_rmsnorm(const struct op_case *c, double *ret) {
    uint32_t dim = c->size[1];
    double *x = mem_alloc(dim * sizeof *x);
    for (uint32_t i = 0; i < c->size[0]; i++) {
        for (uint32_t d = 0; d < dim; d++) x[d] = fine(6, mix_u64(i) % c->size[2] * dim + d);
        double f = ref_factor(x, dim, dim, norm_eps);
        for (uint32_t d = 0; d < dim; d++) *ret++ = x[d] * f * fine(7, d);
    }
    free(x);
}

/* swiglu: T, I */
static void run_swiglu(const struct ops *o, const struct op_case *c, uint32_t schedule,
                       float *ret) {
    uint64_t n = (uint64_t)c->size[0] * c->size[1];
    float *g = mem_alloc(n * F32);
    for (uint64_t i = 0; i < n; i++) g[i] = 20 * fine(8, i);
    struct buf gate = buf_of(o, g, n * F32), up = buf_fine(o, 9, n);
    o->swiglu(o->ctx,
              &(struct swiglu_args){
                  .gate = gate.p, .up = up.p, .y = gate.p, .rows = c->size[0], .dim = c->size[1]});
    get(o, ret, &gate, n);
    buf_free(o, &gate);
    buf_free(o, &up);
    free(g);
}

static void ref_swiglu(const struct op_case *c, double *ret) {
    for (uint64_t i = 0; i < (uint64_t)c->size[0] * c->size[1]; i++)
        ret[i] = ref_silu(20 * fine(8, i)) * fine(9, i);
}

/* rope: T, pairs */
static uint32_t rope_pos(uint32_t i) {
    return i < 4 ? i : (uint32_t)(mix_u64(i) % 1000000);
}

static float rope_freq(uint32_t i, uint32_t pairs) {
    return (float)pow(1e7, -(double)i / pairs);
}

static void run_rope(const struct ops *o, const struct op_case *c, uint32_t schedule, float *ret) {
    uint32_t t = c->size[0], pairs = c->size[1], *pos = mem_alloc(t * sizeof *pos);
    float *freq = mem_alloc(pairs * F32);
    for (uint32_t i = 0; i < t; i++) pos[i] = rope_pos(i);
    for (uint32_t i = 0; i < pairs; i++) freq[i] = rope_freq(i, pairs);
    struct buf p = buf_of(o, pos, t * sizeof *pos), f = buf_of(o, freq, pairs * F32);
    struct buf y = buf_new(o, (uint64_t)t * 2 * pairs * F32);
    o->rope(
        o->ctx,
        &(struct rope_args){
            .pos = p.p, .freq = f.p, .angles = y.p, .rows = t, .pairs = pairs, .scale = 1.125f});
    get(o, ret, &y, (uint64_t)t * 2 * pairs);
    buf_free(o, &p);
    buf_free(o, &f);
    buf_free(o, &y);
    free(pos);
    free(freq);
}

static void ref_rope(const struct op_case *c, double *ret) {
    for (uint32_t i = 0; i < c->size[0]; i++, ret += 2 * c->size[1])
        for (uint32_t k = 0; k < c->size[1]; k++) {
            float angle = (float)rope_pos(i) * rope_freq(k, c->size[1]); // one fp32 product
            ret[k] = cos((double)angle) * 1.125;
            ret[c->size[1] + k] = sin((double)angle) * 1.125;
        }
}

/* delta_gates: T, NV */
static void run_gates(const struct ops *o, const struct op_case *c, uint32_t schedule, float *ret) {
    uint64_t n = (uint64_t)c->size[0] * c->size[1];
    float *neg = mem_alloc(c->size[1] * F32), *av = mem_alloc(n * F32);
    for (uint32_t h = 0; h < c->size[1]; h++) neg[h] = -expf(3 * fine(12, h));
    for (uint64_t i = 0; i < n; i++) av[i] = 12 * fine(10, i);
    struct buf a = buf_of(o, av, n * F32), b = buf_fine(o, 11, n);
    struct buf na = buf_of(o, neg, c->size[1] * F32), dt = buf_fine(o, 13, c->size[1]);
    struct buf y = buf_new(o, 2 * n * F32);
    o->delta_gates(o->ctx, &(struct delta_gates_args){.a = a.p,
                                                      .b = b.p,
                                                      .neg_a = na.p,
                                                      .dt_bias = dt.p,
                                                      .gates = y.p,
                                                      .rows = c->size[0],
                                                      .heads = c->size[1]});
    get(o, ret, &y, 2 * n);
    buf_free(o, &a);
    buf_free(o, &b);
    buf_free(o, &na);
    buf_free(o, &dt);
    buf_free(o, &y);
    free(neg);
    free(av);
}

static void ref_gates(const struct op_case *c, double *ret) {
    uint32_t nv = c->size[1];
    for (uint32_t i = 0; i < c->size[0]; i++, ret += 2 * nv)
        for (uint32_t h = 0; h < nv; h++) {
            double x = 12 * fine(10, (uint64_t)i * nv + h) + fine(13, h);
            ret[h] =
                exp(-(double)expf(3 * fine(12, h)) * (x > 0 ? x + log1p(exp(-x)) : log1p(exp(x))));
            ret[nv + h] = 1 / (1 + exp(-(double)fine(11, (uint64_t)i * nv + h)));
        }
}

/* delta_norm: T, NK, DK, extra channels (values) */
static uint32_t qkv_width(const struct op_case *c) {
    return 2 * c->size[1] * c->size[2] + c->size[3];
}

static void run_delta_norm(const struct ops *o, const struct op_case *c, uint32_t schedule,
                           float *ret) {
    uint64_t n = (uint64_t)c->size[0] * qkv_width(c);
    struct buf x = buf_fine(o, 14, n);
    o->delta_norm(o->ctx, &(struct delta_norm_args){.qkv = x.p,
                                                    .rows = c->size[0],
                                                    .channels = qkv_width(c),
                                                    .key_heads = c->size[1],
                                                    .key_dim = c->size[2],
                                                    .q_scale = 0.3125f});
    get(o, ret, &x, n);
    buf_free(o, &x);
}

static void ref_delta_norm(const struct op_case *c, double *ret) {
    uint32_t nk = c->size[1], dk = c->size[2];
    uint64_t n = (uint64_t)c->size[0] * qkv_width(c);
    for (uint64_t i = 0; i < n; i++) ret[i] = fine(14, i);
    for (uint32_t t = 0; t < c->size[0]; t++, ret += qkv_width(c))
        for (uint32_t h = 0; h < 2 * nk; h++) {
            double f = ref_factor(ret + h * dk, dk, 1, 1e-6) * (h < nk ? 0.3125 : 1);
            for (uint32_t d = 0; d < dk; d++) ret[h * dk + d] *= f;
        }
}

/* gated_norm: T, NV, DV */
static void run_gated_norm(const struct ops *o, const struct op_case *c, uint32_t schedule,
                           float *ret) {
    uint64_t n = (uint64_t)c->size[0] * c->size[1] * c->size[2];
    struct buf x = buf_fine(o, 15, n), z = buf_fine(o, 16, n), w = buf_fine(o, 17, c->size[2]);
    o->gated_norm(o->ctx, &(struct gated_norm_args){.o = x.p,
                                                    .z = z.p,
                                                    .w = w.p,
                                                    .y = x.p,
                                                    .rows = c->size[0],
                                                    .heads = c->size[1],
                                                    .dim = c->size[2],
                                                    .eps = norm_eps});
    get(o, ret, &x, n);
    buf_free(o, &x);
    buf_free(o, &z);
    buf_free(o, &w);
}

static void ref_gated_norm(const struct op_case *c, double *ret) {
    uint32_t dim = c->size[2];
    double *x = mem_alloc(dim * sizeof *x);
    for (uint64_t h = 0; h < (uint64_t)c->size[0] * c->size[1]; h++) {
        for (uint32_t d = 0; d < dim; d++) x[d] = fine(15, h * dim + d);
        double f = ref_factor(x, dim, dim, norm_eps);
        for (uint32_t d = 0; d < dim; d++)
            *ret++ = x[d] * f * fine(17, d) * ref_silu(fine(16, h * dim + d));
    }
    free(x);
}

/* Streams: size[0] is the length of the longest of SLOTS; the others are shorter. */
static uint32_t length_of(const struct op_case *c, uint32_t slot) {
    return slot == 0 ? c->size[0] : slot == 1 ? (c->size[0] + 1) / 2 : (c->size[0] + 5) / 6;
}

// Where a stream's outputs begin, in rows.
static uint32_t rows_before(const struct op_case *c, uint32_t slot) {
    uint32_t rows = 0;
    for (uint32_t s = 0; s < slot; s++) rows += length_of(c, s);
    return rows;
}

struct feed { // one round of a schedule
    struct run runs[SLOTS];
    uint32_t runs_count, rows;
};

static uint32_t next_count(uint32_t schedule, uint32_t fed, uint32_t slot, uint32_t left) {
    if (!schedule) return left;
    uint32_t n = (uint32_t)(mix_u64((uint64_t)schedule << 32 | fed << 4 | slot) % (schedule * 13));
    return n < left ? n : left;
}

static void plan_feed(struct feed *f, const struct op_case *c, uint32_t schedule, uint32_t turn,
                      const uint32_t *fed) {
    *f = (struct feed){0};
    for (uint32_t i = 0; i < SLOTS; i++) {
        uint32_t slot = schedule ? (i + turn) % SLOTS : i, left = length_of(c, slot) - fed[slot];
        uint32_t n = next_count(schedule, fed[slot] + turn, slot, left);
        if (!n || (!schedule && f->runs_count)) continue;
        f->runs[f->runs_count++] =
            (struct run){.slot = slot, .row = f->rows, .pos = fed[slot], .count = n};
        f->rows += n;
    }
}

struct table { // rows of a round on the device
    struct buf slot, pos, runs;
    struct rows rows;
};

static struct table table_of(const struct ops *o, const struct feed *f) {
    uint32_t *v = mem_alloc(2 * (f->rows + 1) * sizeof *v), *p = v + f->rows + 1;
    for (uint32_t r = 0; r < f->runs_count; r++)
        for (uint32_t i = 0; i < f->runs[r].count; i++) {
            v[f->runs[r].row + i] = f->runs[r].slot;
            p[f->runs[r].row + i] = f->runs[r].pos + i;
        }
    struct table t = {.slot = buf_of(o, v, (f->rows + 1) * sizeof *v),
                      .pos = buf_of(o, p, (f->rows + 1) * sizeof *v),
                      .runs = buf_of(o, f->runs, sizeof f->runs)};
    t.rows = (struct rows){.count = f->rows,
                           .runs_count = f->runs_count,
                           .slot = t.slot.p,
                           .pos = t.pos.p,
                           .runs = t.runs.p};
    free(v);
    return t;
}

static void table_free(const struct ops *o, struct table *t) {
    buf_free(o, &t->slot);
    buf_free(o, &t->pos);
    buf_free(o, &t->runs);
}

// Input rows of the round, in its order; input i of (slot, pos) is fine(what, ..).
static struct buf feed_input(const struct ops *o, const struct feed *f, const struct op_case *c,
                             uint32_t what, uint32_t width) {
    float *v = mem_alloc((uint64_t)(f->rows + 1) * width * F32);
    for (uint32_t r = 0; r < f->runs_count; r++)
        for (uint32_t i = 0; i < f->runs[r].count; i++)
            for (uint32_t k = 0; k < width; k++) {
                uint64_t row = rows_before(c, f->runs[r].slot) + f->runs[r].pos + i;
                v[(uint64_t)(f->runs[r].row + i) * width + k] = fine(what, row * width + k);
            }
    struct buf b = buf_of(o, v, (uint64_t)(f->rows + 1) * width * F32);
    free(v);
    return b;
}

static void put_output(const struct ops *o, const struct feed *f, const struct op_case *c,
                       const struct buf *b, uint32_t width, float *ret) {
    float *v = mem_alloc((uint64_t)f->rows * width * F32);
    get(o, v, b, (uint64_t)f->rows * width);
    for (uint32_t r = 0; r < f->runs_count; r++)
        memcpy(ret + (uint64_t)(rows_before(c, f->runs[r].slot) + f->runs[r].pos) * width,
               v + (uint64_t)f->runs[r].row * width, (uint64_t)f->runs[r].count * width * F32);
    free(v);
}

struct stream_op {
    void (*round)(const struct ops *o, const struct op_case *c, const struct feed *f,
                  const struct table *t, struct buf *state, float *ret);
};

static void run_streams(const struct ops *o, const struct op_case *c, uint32_t schedule,
                        const struct stream_op *op, struct buf *state, float *ret) {
    uint32_t fed[SLOTS] = {0}, done = 0, all = rows_before(c, SLOTS);
    for (uint32_t turn = 0; done < all; turn++) {
        struct feed f;
        plan_feed(&f, c, schedule, turn, fed);
        if (!f.rows) continue;
        struct table t = table_of(o, &f);
        op->round(o, c, &f, &t, state, ret);
        table_free(o, &t);
        for (uint32_t r = 0; r < f.runs_count; r++) fed[f.runs[r].slot] += f.runs[r].count;
        done += f.rows;
    }
}

/* attn (with kv_append): longest, H, KV, dim, rotary pairs, dtype of the cache */
static uint32_t attn_pages(const struct op_case *c) {
    return (c->size[0] + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

static uint32_t page_of(const struct op_case *c, uint32_t slot, uint32_t i) { // scattered
    uint32_t n = attn_pages(c) * SLOTS;
    return (slot * attn_pages(c) + i) * 7 % (n % 7 ? n : n + 1);
}

static void attn_round(const struct ops *o, const struct op_case *c, const struct feed *f,
                       const struct table *t, struct buf *state, float *ret) {
    uint32_t h = c->size[1], kv = c->size[2], dim = c->size[3], pairs = c->size[4];
    struct buf qg = feed_input(o, f, c, 20, h * 2 * dim), k = feed_input(o, f, c, 21, kv * dim);
    struct buf v = feed_input(o, f, c, 22, kv * dim), angles = feed_input(o, f, c, 23, 2 * pairs);
    struct buf qs = buf_fine(o, 24, dim), ks = buf_fine(o, 25, dim);
    struct buf out = buf_new(o, (uint64_t)f->rows * h * dim * F32);
    struct kv_view view = {.k = state[0].p,
                           .v = state[1].p,
                           .table = state[2].p,
                           .pages_per_slot = attn_pages(c),
                           .heads = kv,
                           .dim = dim,
                           .dtype = (enum dtype)c->size[5]};
    o->kv_append(o->ctx, &(struct kv_append_args){.rows = t->rows,
                                                  .kv = view,
                                                  .qg = qg.p,
                                                  .k = k.p,
                                                  .v = v.p,
                                                  .angles = angles.p,
                                                  .q_scale = qs.p,
                                                  .k_scale = ks.p,
                                                  .heads = h,
                                                  .pairs = pairs,
                                                  .eps = norm_eps});
    o->attn(o->ctx,
            &(struct attn_args){
                .rows = t->rows, .kv = view, .qg = qg.p, .out = out.p, .heads = h, .scale = 2});
    put_output(o, f, c, &out, h * dim, ret);
    struct buf *all[] = {&qg, &k, &v, &angles, &qs, &ks, &out};
    for (uint32_t i = 0; i < 7; i++) buf_free(o, all[i]);
}

static void run_attn(const struct ops *o, const struct op_case *c, uint32_t schedule, float *ret) {
    uint32_t n = attn_pages(c) * SLOTS + 1, *table = mem_alloc(n * sizeof *table);
    for (uint32_t s = 0; s < SLOTS; s++)
        for (uint32_t i = 0; i < attn_pages(c); i++)
            table[s * attn_pages(c) + i] = page_of(c, s, i);
    uint64_t bytes = (uint64_t)n * c->size[2] * c->size[3] * KV_PAGE_TOKENS * F32;
    // What an earlier stream left behind must not be looked at: not a number.
    char *stale = mem_alloc(bytes);
    memset(stale, 0xff, bytes);
    struct buf state[3] = {buf_of(o, stale, bytes), buf_of(o, stale, bytes),
                           buf_of(o, table, n * sizeof *table)};
    run_streams(o, c, schedule, &(struct stream_op){attn_round}, state, ret);
    for (uint32_t i = 0; i < 3; i++) buf_free(o, &state[i]);
    free(table);
    free(stale);
}

/* attn on caches that are full already: first position, rows, H, KV, streams, dtype of the cache; heads of 256. Later streams are
 * shorter and have fewer rows. Schedule 0 is all rows at once, 1 stream by stream, 2 row by row. */
enum { AT_DIM = 256 };
static uint32_t at_rows(const struct op_case *c, uint32_t s) {
    return s ? (c->size[1] + s) / (s + 1) : c->size[1];
}

static uint32_t at_pos(const struct op_case *c, uint32_t s) {
    return c->size[0] / (s + 1);
}

static uint32_t at_pages(const struct op_case *c) {
    return (c->size[0] + c->size[1] + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

// Keys or values of all streams; where no row is, not a number.
static struct buf at_cache(const struct ops *o, const struct op_case *c, uint32_t what) {
    enum dtype type = (enum dtype)c->size[5];
    uint32_t page = KV_PAGE_TOKENS * AT_DIM;
    struct kv_view kv = {.heads = c->size[3], .dim = AT_DIM, .dtype = type};
    uint64_t count = (uint64_t)c->size[4] * at_pages(c) * kv.heads * page, size = dtype_bytes(type);
    unsigned char *v = mem_alloc(count * size);
    memset(v, 0xff, count * size);
    for (uint32_t s = 0; s < c->size[4]; s++)
        for (uint32_t pos = 0; pos < at_pos(c, s) + at_rows(c, s); pos++)
            for (uint32_t h = 0; h < kv.heads; h++)
                for (uint32_t d = 0; d < AT_DIM; d++) {
                    uint64_t at = (s * at_pages(c) + pos / KV_PAGE_TOKENS) * kv.heads + h;
                    uint64_t i = at * page + kv_in_page(&kv, pos % KV_PAGE_TOKENS, d);
                    kv_put(v, i, type, 2 * fine(what, i));
                }
    struct buf b = buf_of(o, v, count * size);
    free(v);
    return b;
}

// Rows first .. first + count - 1 of streams `from` .. `to` - 1, in one call; outputs stand stream after stream.
static void at_round(const struct ops *o, const struct op_case *c, const struct buf *cache,
                     uint32_t from, uint32_t to, uint32_t first, uint32_t count, float *ret) {
    uint32_t width = c->size[2] * AT_DIM, before = 0;
    struct run *runs = mem_calloc(c->size[4], sizeof *runs);
    uint32_t *slot = mem_calloc(2 * c->size[1] * c->size[4], sizeof *slot);
    uint32_t *pos = slot + c->size[1] * c->size[4], rows = 0, runs_count = 0;
    float *qg = mem_alloc((uint64_t)c->size[1] * c->size[4] * 2 * width * F32);
    for (uint32_t s = 0; s < from; s++) before += at_rows(c, s);
    for (uint32_t s = from, base = before; s < to; base += at_rows(c, s++)) {
        uint32_t n = at_rows(c, s) - first < count ? at_rows(c, s) - first : count;
        runs[runs_count++] =
            (struct run){.slot = s, .row = rows, .pos = at_pos(c, s) + first, .count = n};
        for (uint32_t i = 0; i < n; i++, rows++) {
            slot[rows] = s;
            pos[rows] = at_pos(c, s) + first + i;
            for (uint32_t d = 0; d < 2 * width; d++)
                qg[(uint64_t)rows * 2 * width + d] =
                    2 * fine(27, (uint64_t)(base + first + i) * 2 * width + d);
        }
    }
    struct buf q = buf_of(o, qg, (uint64_t)rows * 2 * width * F32);
    struct buf out = buf_new(o, (uint64_t)rows * width * F32);
    struct buf ds = buf_of(o, slot, rows * sizeof *slot), dp = buf_of(o, pos, rows * sizeof *pos);
    struct buf dr = buf_of(o, runs, runs_count * sizeof *runs);
    o->attn(o->ctx, &(struct attn_args){.rows = {.count = rows,
                                                 .runs_count = runs_count,
                                                 .slot = ds.p,
                                                 .pos = dp.p,
                                                 .runs = dr.p},
                                        .kv = {.k = cache[0].p,
                                               .v = cache[1].p,
                                               .table = cache[2].p,
                                               .pages_per_slot = at_pages(c),
                                               .heads = c->size[3],
                                               .dim = AT_DIM,
                                               .dtype = (enum dtype)c->size[5]},
                                        .qg = q.p,
                                        .out = out.p,
                                        .heads = c->size[2],
                                        .scale = 0.0625f});
    get(o, ret + (uint64_t)(before + first) * width, &out, (uint64_t)rows * width);
    struct buf *all[] = {&q, &out, &ds, &dp, &dr};
    for (uint32_t i = 0; i < 5; i++) buf_free(o, all[i]);
    free(runs);
    free(slot);
    free(qg);
}

static void run_attn_at(const struct ops *o, const struct op_case *c, uint32_t schedule,
                        float *ret) {
    uint32_t pages = at_pages(c) * c->size[4], *table = mem_alloc(pages * sizeof *table);
    for (uint32_t i = 0; i < pages; i++) table[i] = i;
    struct buf cache[3] = {at_cache(o, c, 28), at_cache(o, c, 29),
                           buf_of(o, table, pages * sizeof *table)};
    if (schedule == 0) at_round(o, c, cache, 0, c->size[4], 0, c->size[1], ret);
    for (uint32_t s = 0; schedule && s < c->size[4]; s++) {
        uint32_t step = schedule == 1 ? at_rows(c, s) : 1;
        for (uint32_t i = 0; i < at_rows(c, s); i += step)
            at_round(o, c, cache, s, s + 1, i, step, ret);
    }
    for (uint32_t i = 0; i < 3; i++) buf_free(o, &cache[i]);
    free(table);
}

static void ref_norm_rotate(double *x, uint32_t dim, uint32_t what, uint32_t pairs, uint64_t row) {
    double f = ref_factor(x, dim, dim, norm_eps);
    for (uint32_t d = 0; d < dim; d++) x[d] *= f * fine(what, d);
    for (uint32_t i = 0; i < pairs; i++) {
        double cos = fine(23, row * 2 * pairs + i), sin = fine(23, row * 2 * pairs + pairs + i);
        double a = x[i], b = x[pairs + i];
        x[i] = a * cos - b * sin;
        x[pairs + i] = b * cos + a * sin;
    }
}

// The head's row: normed and rotated; heads of `step` values.
static void ref_row(double *x, const struct op_case *c, uint32_t what, uint32_t scale, uint64_t row,
                    uint32_t width, uint32_t first) {
    for (uint32_t d = 0; d < c->size[3]; d++) x[d] = fine(what, row * width + first + d);
    ref_norm_rotate(x, c->size[3], scale, c->size[4], row);
}

// As the cache holds it.
static double cached(double x, enum dtype d) {
    int e;
    frexp(x, &e);
    double step =
        ldexp(1, d == DTYPE_E4M3 ? (e < -5 ? -5 : e) - 4 : e - (d == DTYPE_BF16 ? 8 : 24));
    double r = nearbyint(x / step) * step;
    return d == DTYPE_E4M3 && fabs(r) > 448 ? copysign(448, r) : r;
}

static void ref_attn_query(const struct op_case *c, uint64_t base, uint32_t pos, uint32_t head,
                           double *ret) {
    uint32_t dim = c->size[3], kv = c->size[2], group = c->size[1] / kv, qw = c->size[1] * 2 * dim;
    double q[512], k[512], *s = mem_alloc((pos + 1) * sizeof *s), max = -INFINITY, sum = 0;
    enum dtype type = (enum dtype)c->size[5];
    ref_row(q, c, 20, 24, base + pos, qw, head * 2 * dim);
    for (uint32_t j = 0; j <= pos; j++) {
        ref_row(k, c, 21, 25, base + j, kv * dim, head / group * dim);
        s[j] = 0;
        for (uint32_t d = 0; d < dim; d++) s[j] += q[d] * cached(k[d], type) * 2;
        max = fmax(max, s[j]);
    }
    for (uint32_t d = 0; d < dim; d++) ret[d] = 0;
    for (uint32_t j = 0; j <= pos; j++) {
        double p = exp(s[j] - max);
        sum += p;
        for (uint32_t d = 0; d < dim; d++)
            ret[d] += p * cached(fine(22, (base + j) * kv * dim + head / group * dim + d), type);
    }
    for (uint32_t d = 0; d < dim; d++)
        ret[d] /= sum * (1 + exp(-(double)fine(20, (base + pos) * qw + head * 2 * dim + dim + d)));
    free(s);
}

static void ref_attn(const struct op_case *c, double *ret) {
    for (uint32_t s = 0; s < SLOTS; s++)
        for (uint32_t pos = 0; pos < length_of(c, s); pos++)
            for (uint32_t h = 0; h < c->size[1]; h++, ret += c->size[3])
                ref_attn_query(c, rows_before(c, s), pos, h, ret);
}

/* conv (with conv_store): longest, C */
static void conv_round(const struct ops *o, const struct op_case *c, const struct feed *f,
                       const struct table *t, struct buf *state, float *ret) {
    uint32_t channels = c->size[1];
    uint64_t stride = (uint64_t)channels * (CONV_TAPS - 1) * F32;
    struct buf m = feed_input(o, f, c, 30, channels), w = buf_fine(o, 31, CONV_TAPS * channels);
    struct buf y = buf_new(o, (uint64_t)f->rows * channels * F32);
    o->conv(o->ctx, &(struct conv_args){.rows = t->rows,
                                        .m = m.p,
                                        .w = w.p,
                                        .y = y.p,
                                        .state = state->p,
                                        .slot_stride = stride,
                                        .channels = channels});
    o->conv_store(o->ctx, &(struct conv_store_args){.runs = t->runs.p,
                                                    .runs_count = f->runs_count,
                                                    .m = m.p,
                                                    .state = state->p,
                                                    .slot_stride = stride,
                                                    .channels = channels});
    put_output(o, f, c, &y, channels, ret);
    buf_free(o, &m);
    buf_free(o, &w);
    buf_free(o, &y);
}

static void run_conv(const struct ops *o, const struct op_case *c, uint32_t schedule, float *ret) {
    struct buf state = buf_fine(o, STALE, (uint64_t)SLOTS * (CONV_TAPS - 1) * c->size[1]);
    run_streams(o, c, schedule, &(struct stream_op){conv_round}, &state, ret);
    buf_free(o, &state);
}

static void ref_conv(const struct op_case *c, double *ret) {
    uint32_t channels = c->size[1];
    for (uint32_t s = 0; s < SLOTS; s++)
        for (uint32_t t = 0; t < length_of(c, s); t++)
            for (uint32_t k = 0; k < channels; k++) {
                double sum = 0;
                for (uint32_t j = 0; j < CONV_TAPS; j++)
                    if (t + j >= CONV_TAPS - 1)
                        sum += (double)fine(31, j * channels + k) *
                               fine(30, (uint64_t)(rows_before(c, s) + t + j + 1 - CONV_TAPS) *
                                                channels +
                                            k);
                *ret++ = ref_silu(sum);
            }
}

/* delta_scan: longest, NK, NV, DK, DV */
static uint32_t scan_width(const struct op_case *c) {
    return 2 * c->size[1] * c->size[3] + c->size[2] * c->size[4];
}

// Unit keys and queries; gates in (0, 1).
static float scan_input(const struct op_case *c, uint64_t row, uint32_t k) {
    float x = fine(40, row * scan_width(c) + k);
    return k < 2 * c->size[1] * c->size[3] ? x / sqrtf((float)c->size[3] / 3) : x;
}

static float scan_gate(const struct op_case *c, uint64_t row, uint32_t k) {
    return 0.5f + 0.5f * fine(41, row * 2 * c->size[2] + k);
}

static void scan_round(const struct ops *o, const struct op_case *c, const struct feed *f,
                       const struct table *t, struct buf *state, float *ret) {
    uint32_t width = scan_width(c), gates_width = 2 * c->size[2],
             out_width = c->size[2] * c->size[4];
    float *x = mem_alloc((uint64_t)f->rows * width * F32),
          *g = mem_alloc((uint64_t)f->rows * gates_width * F32);
    for (uint32_t r = 0; r < f->runs_count; r++)
        for (uint32_t i = 0; i < f->runs[r].count; i++) {
            uint64_t row = rows_before(c, f->runs[r].slot) + f->runs[r].pos + i,
                     at = f->runs[r].row + i;
            for (uint32_t k = 0; k < width; k++) x[at * width + k] = scan_input(c, row, k);
            for (uint32_t k = 0; k < gates_width; k++)
                g[at * gates_width + k] = scan_gate(c, row, k);
        }
    struct buf qkv = buf_of(o, x, (uint64_t)f->rows * width * F32);
    struct buf gates = buf_of(o, g, (uint64_t)f->rows * gates_width * F32);
    struct buf out = buf_new(o, (uint64_t)f->rows * out_width * F32);
    o->delta_scan(o->ctx,
                  &(struct delta_scan_args){.runs = t->runs.p,
                                            .runs_count = f->runs_count,
                                            .rows = f->rows,
                                            .qkv = qkv.p,
                                            .gates = gates.p,
                                            .out = out.p,
                                            .state = state->p,
                                            .slot_stride = (uint64_t)out_width * c->size[3] * F32,
                                            .key_heads = c->size[1],
                                            .value_heads = c->size[2],
                                            .key_dim = c->size[3],
                                            .value_dim = c->size[4]});
    put_output(o, f, c, &out, out_width, ret);
    buf_free(o, &qkv);
    buf_free(o, &gates);
    buf_free(o, &out);
    free(x);
    free(g);
}

static void run_scan(const struct ops *o, const struct op_case *c, uint32_t schedule, float *ret) {
    struct buf state = buf_fine(o, STALE, (uint64_t)SLOTS * c->size[2] * c->size[4] * c->size[3]);
    run_streams(o, c, schedule, &(struct stream_op){scan_round}, &state, ret);
    buf_free(o, &state);
}

// One token of one head: decay, read, write, read. s is [DK, DV].
static void ref_step(const struct op_case *c, double *s, uint64_t row, uint32_t head, double *out) {
    uint32_t nk = c->size[1], nv = c->size[2], dk = c->size[3], dv = c->size[4];
    uint32_t q0 = head / (nv / nk) * dk, k0 = nk * dk + q0, v0 = 2 * nk * dk + head * dv;
    double decay = scan_gate(c, row, head), strength = scan_gate(c, row, nv + head);
    for (uint32_t i = 0; i < dk * dv; i++) s[i] *= decay;
    for (uint32_t j = 0; j < dv; j++) {
        double read = 0;
        for (uint32_t i = 0; i < dk; i++) read += s[i * dv + j] * scan_input(c, row, k0 + i);
        double d = strength * (scan_input(c, row, v0 + j) - read);
        out[j] = 0;
        for (uint32_t i = 0; i < dk; i++) {
            s[i * dv + j] += scan_input(c, row, k0 + i) * d;
            out[j] += s[i * dv + j] * scan_input(c, row, q0 + i);
        }
    }
}

static void ref_scan(const struct op_case *c, double *ret) {
    uint32_t nv = c->size[2], dk = c->size[3], dv = c->size[4];
    double *s = mem_alloc((size_t)dk * dv * sizeof *s);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t h = 0; h < nv; h++) {
            memset(s, 0, (size_t)dk * dv * sizeof *s);
            for (uint32_t t = 0; t < length_of(c, slot); t++) {
                uint64_t row = rows_before(c, slot) + t;
                ref_step(c, s, row, h, ret + (row * nv + h) * dv);
            }
        }
    free(s);
}

/* delta_mix (with delta_commit): longest, NK, NV, DK, DV. Where rows are cut, one stream's are recorded and then committed. */
enum { MIX_M = 60, MIX_Z, MIX_A, MIX_B, MIX_CONV, MIX_NEG_A, MIX_BIAS, MIX_NORM, MIX_RECORDED = 1 };

static float mix_neg_a(uint32_t head) {
    return -1.0f - fine(MIX_NEG_A, head);
}

static uint64_t mix_conv_floats(const struct op_case *c) {
    return (uint64_t)(CONV_TAPS - 1) * scan_width(c);
}

static uint64_t mix_stride(const struct op_case *c) {
    return (mix_conv_floats(c) + (uint64_t)c->size[2] * c->size[3] * c->size[4]) * F32;
}

// What a backend without delta_mix does.
static void mix_steps(const struct ops *o, const struct delta_mix_args *a, const struct run *runs) {
    struct delta_mix_parts p = delta_mix_parts(a);
    o->conv(o->ctx, &p.conv);
    o->delta_norm(o->ctx, &p.norm);
    o->delta_gates(o->ctx, &p.gates);
    for (uint32_t i = 0; i < a->rows.runs_count; i++) {
        uint64_t to = runs[i].record - 1, w = p.channels * F32, g = 2 * a->value_heads * F32;
        if (!runs[i].record) continue;
        o->copy(o->ctx, a->rec_m + to * w, a->m + runs[i].row * w, runs[i].count * w);
        o->copy(o->ctx, a->rec_qkv + to * w, a->qkv + runs[i].row * w, runs[i].count * w);
        o->copy(o->ctx, a->rec_gates + to * g, a->gates + runs[i].row * g, runs[i].count * g);
    }
    o->conv_store(o->ctx, &p.store);
    o->delta_scan(o->ctx, &p.scan);
    o->gated_norm(o->ctx, &p.out);
}

// A commit of two layers, whose records are the same, and of whose states the second is a copy of the first: so it must be after it.
static void mix_commit_layers(const struct ops *o, struct delta_commit_args *c, uint32_t slot) {
    uint64_t bytes = c->conv.slot_stride, layer = SLOTS * bytes;
    char *first = mem_alloc(bytes), *second = mem_alloc(bytes);
    devptr at = c->conv.state + slot * bytes;
    struct err e;
    c->layers = 2;
    c->layer_bytes = layer;
    o->copy(o->ctx, at + layer, at, bytes);
    o->delta_commit(o->ctx, c);
    o->read(o->ctx, first, at, bytes);
    o->read(o->ctx, second, at + layer, bytes);
    CHECK_OK(o->sync(o->ctx, &e), e);
    CHECK(!memcmp(first, second, bytes));
    free(first);
    free(second);
}

static void mix_commit(const struct ops *o, const struct delta_mix_args *a, struct run run) {
    uint32_t width = 2 * a->key_heads * a->key_dim + a->value_heads * a->value_dim;
    run.row = run.record - 1;
    run.record = 0;
    struct buf runs = buf_of(o, &run, sizeof run);
    struct delta_commit_args c = {.scan = {.runs = runs.p,
                                           .runs_count = 1,
                                           .rows = run.count,
                                           .qkv = a->rec_qkv,
                                           .gates = a->rec_gates,
                                           .state = a->state,
                                           .slot_stride = a->slot_stride,
                                           .key_heads = a->key_heads,
                                           .value_heads = a->value_heads,
                                           .key_dim = a->key_dim,
                                           .value_dim = a->value_dim},
                                  .conv = {.runs = runs.p,
                                           .runs_count = 1,
                                           .m = a->rec_m,
                                           .state = a->conv_state,
                                           .slot_stride = a->slot_stride,
                                           .channels = width}};
    if (o->delta_commit) {
        mix_commit_layers(o, &c, run.slot);
    } else {
        o->delta_scan(o->ctx, &c.scan);
        o->conv_store(o->ctx, &c.conv);
    }
    buf_free(o, &runs);
}

static void mix_round(const struct ops *o, const struct op_case *c, const struct feed *f,
                      const struct table *t, struct buf *state, float *ret) {
    uint32_t nv = c->size[2], out = nv * c->size[4], width = scan_width(c);
    struct run runs[SLOTS];
    float neg_a[64];
    memcpy(runs, f->runs, sizeof runs);
    bool whole = f->runs_count == 1 && f->runs[0].count == length_of(c, f->runs[0].slot);
    for (uint32_t i = 0; i < f->runs_count; i++)
        if (runs[i].slot == MIX_RECORDED && !whole) runs[i].record = runs[i].row + 1;
    for (uint32_t i = 0; i < nv; i++) neg_a[i] = mix_neg_a(i);
    struct buf b[] = {feed_input(o, f, c, MIX_M, width),
                      feed_input(o, f, c, MIX_Z, out),
                      feed_input(o, f, c, MIX_A, nv),
                      feed_input(o, f, c, MIX_B, nv),
                      buf_new(o, (uint64_t)f->rows * width * F32),
                      buf_new(o, (uint64_t)f->rows * 2 * nv * F32),
                      buf_new(o, (uint64_t)f->rows * out * F32),
                      buf_fine(o, MIX_CONV, CONV_TAPS * width),
                      buf_of(o, neg_a, nv * F32),
                      buf_fine(o, MIX_BIAS, nv),
                      buf_fine(o, MIX_NORM, c->size[4]),
                      buf_new(o, (uint64_t)f->rows * width * F32),
                      buf_new(o, (uint64_t)f->rows * width * F32),
                      buf_new(o, (uint64_t)f->rows * 2 * nv * F32),
                      buf_of(o, runs, sizeof runs)};
    struct delta_mix_args a = {.rows = t->rows,
                               .m = b[0].p,
                               .z = b[1].p,
                               .a = b[2].p,
                               .b = b[3].p,
                               .qkv = b[4].p,
                               .gates = b[5].p,
                               .o = b[6].p,
                               .conv_w = b[7].p,
                               .neg_a = b[8].p,
                               .dt_bias = b[9].p,
                               .norm_w = b[10].p,
                               .rec_m = b[11].p,
                               .rec_qkv = b[12].p,
                               .rec_gates = b[13].p,
                               .conv_state = state->p,
                               .state = state->p + mix_conv_floats(c) * F32,
                               .slot_stride = mix_stride(c),
                               .key_heads = c->size[1],
                               .value_heads = nv,
                               .key_dim = c->size[3],
                               .value_dim = c->size[4],
                               .q_scale = 0.25f,
                               .eps = norm_eps};
    a.rows.runs = b[14].p;
    if (o->delta_mix)
        o->delta_mix(o->ctx, &a);
    else
        mix_steps(o, &a, runs);
    for (uint32_t i = 0; i < f->runs_count; i++)
        if (runs[i].record) mix_commit(o, &a, runs[i]);
    put_output(o, f, c, &b[6], out, ret);
    for (uint32_t i = 0; i < sizeof b / sizeof *b; i++) buf_free(o, &b[i]);
}

static void run_mix(const struct ops *o, const struct op_case *c, uint32_t schedule, float *ret) {
    struct buf state = buf_fine(o, STALE, 2 * SLOTS * mix_stride(c) / F32);
    run_streams(o, c, schedule, &(struct stream_op){mix_round}, &state, ret);
    buf_free(o, &state);
}

// The row's channels, convolved; queries and keys of unit length.
static void ref_mix_inputs(const struct op_case *c, uint32_t slot, uint32_t t, double *x) {
    uint32_t nk = c->size[1], dk = c->size[3], width = scan_width(c);
    for (uint32_t k = 0; k < width; k++) {
        double sum = 0;
        for (uint32_t j = 0; j < CONV_TAPS; j++)
            if (t + j >= CONV_TAPS - 1)
                sum += (double)fine(MIX_CONV, j * width + k) *
                       fine(MIX_M,
                            (uint64_t)(rows_before(c, slot) + t + j + 1 - CONV_TAPS) * width + k);
        x[k] = ref_silu(sum);
    }
    for (uint32_t h = 0; h < 2 * nk; h++) {
        double f = ref_factor(x + h * dk, dk, 1, 1e-6) * (h < nk ? 0.25 : 1);
        for (uint32_t d = 0; d < dk; d++) x[h * dk + d] *= f;
    }
}

static void ref_mix_head(const struct op_case *c, double *s, const double *x, uint64_t row,
                         uint32_t head, double *out) {
    uint32_t nk = c->size[1], nv = c->size[2], dk = c->size[3], dv = c->size[4];
    const double *q = x + head / (nv / nk) * dk, *k = q + nk * dk, *v = x + 2 * nk * dk + head * dv;
    double pre = (double)fine(MIX_A, row * nv + head) + fine(MIX_BIAS, head);
    double decay = exp(mix_neg_a(head) * log1p(exp(pre)));
    double strength = 1 / (1 + exp(-(double)fine(MIX_B, row * nv + head)));
    for (uint32_t j = 0; j < dv; j++) {
        double read = 0;
        for (uint32_t i = 0; i < dk; i++) read += (s[i * dv + j] *= decay) * k[i];
        double d = strength * (v[j] - read);
        out[j] = 0;
        for (uint32_t i = 0; i < dk; i++) out[j] += (s[i * dv + j] += k[i] * d) * q[i];
    }
    double f = ref_factor(out, dv, dv, norm_eps);
    for (uint32_t j = 0; j < dv; j++)
        out[j] *= f * fine(MIX_NORM, j) * ref_silu(fine(MIX_Z, (row * nv + head) * dv + j));
}

static void ref_mix(const struct op_case *c, double *ret) {
    uint32_t nv = c->size[2], dv = c->size[4], head = c->size[3] * dv;
    double *s = mem_alloc((size_t)nv * head * sizeof *s);
    double *x = mem_alloc(scan_width(c) * sizeof *x);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        memset(s, 0, (size_t)nv * head * sizeof *s);
        for (uint32_t t = 0; t < length_of(c, slot); t++) {
            uint64_t row = rows_before(c, slot) + t;
            ref_mix_inputs(c, slot, t, x);
            for (uint32_t h = 0; h < nv; h++)
                ref_mix_head(c, s + h * head, x, row, h, ret + (row * nv + h) * dv);
        }
    }
    free(s);
    free(x);
}

/* router: T, E, K, kind of logits. Weights, then experts as parts of E, so that both count in one range. */
enum { LOGITS_FINE, LOGITS_TIED, LOGITS_EQUAL };

static float router_logit(const struct op_case *c, uint64_t i) {
    if (c->size[3] == LOGITS_EQUAL) return 3;
    float x = fine(50, i);
    return c->size[3] == LOGITS_TIED ? floorf(4 * x)
                                     : 12 * x; // eight steps, or nearly all different
}

static void run_router(const struct ops *o, const struct op_case *c, uint32_t schedule,
                       float *ret) {
    uint32_t t = c->size[0], n = c->size[1], k = c->size[2], *ids = mem_alloc(t * k * sizeof *ids);
    float *x = mem_alloc((uint64_t)t * n * F32);
    for (uint64_t i = 0; i < (uint64_t)t * n; i++) x[i] = router_logit(c, i);
    struct buf logits = buf_of(o, x, (uint64_t)t * n * F32);
    struct buf experts = buf_new(o, t * k * sizeof *ids), weights = buf_new(o, t * k * F32);
    uint32_t step = schedule ? schedule : t;
    for (uint32_t i = 0; i < t; i += step)
        o->router(o->ctx, &(struct router_args){.logits = logits.p + (uint64_t)i * n * F32,
                                                .experts = experts.p + i * k * sizeof *ids,
                                                .weights = weights.p + i * k * F32,
                                                .rows = min_u32(step, t - i),
                                                .count = n,
                                                .per_token = k});
    get(o, ret, &weights, t * k);
    o->read(o->ctx, ids, experts.p, t * k * sizeof *ids);
    for (uint32_t i = 0; i < t * k; i++) ret[t * k + i] = (float)ids[i] / (float)n;
    buf_free(o, &logits);
    buf_free(o, &experts);
    buf_free(o, &weights);
    free(ids);
    free(x);
}

// Chooses K times the first of the largest that are left.
static void ref_router(const struct op_case *c, double *ret) {
    uint32_t t = c->size[0], n = c->size[1], k = c->size[2];
    bool *taken = mem_calloc(n, sizeof *taken);
    for (uint64_t row = 0; row < t; row++) {
        double sum = 0, *weights = ret + row * k, *experts = ret + (t + row) * k;
        memset(taken, 0, n * sizeof *taken);
        for (uint32_t i = 0; i < k; i++) {
            uint32_t best = n;
            for (uint32_t e = 0; e < n; e++)
                if (!taken[e] &&
                    (best == n || router_logit(c, row * n + e) > router_logit(c, row * n + best)))
                    best = e;
            taken[best] = true;
            experts[i] = (double)best / n;
            sum += weights[i] = exp((double)router_logit(c, row * n + best));
        }
        for (uint32_t i = 0; i < k; i++) weights[i] /= sum;
    }
    free(taken);
}

/* experts: T, D, I, E, K, type of the weights (TYPES_MIXED: another one for each matrix; TYPES_EXL3: EXL3 of another width and
 * codebook for each, but one plain one; TYPES_MUL1, TYPES_MCG: EXL3 of one codebook) + PICKS_SAME for rows that all choose the first K
 * experts + WITH_SHARED */
enum {
    TYPES_MIXED = 3,
    TYPES_EXL3 = 4,
    TYPES_MUL1 = 5,
    TYPES_MCG = 6,
    PICKS_SAME = 8,
    WITH_SHARED = 16
};

// The row's k-th expert: K neighbours in the ring of E, every second row from the last to the first.
static uint32_t pick_of(const struct op_case *c, uint32_t row, uint32_t k) {
    uint32_t place = row % 2 ? c->size[4] - 1 - k : k;
    uint32_t first = c->size[5] & PICKS_SAME ? 0 : (uint32_t)(mix_u64(row + 9) % c->size[3]);
    return (first + place) % c->size[3];
}

static float pick_weight(const struct op_case *c, uint32_t row, uint32_t k) {
    return 0.5f + 0.5f * fine(52, (uint64_t)row * c->size[4] + k);
}

// The matrix of an expert that is EXL3; 0 half bits: it is plain.
struct expert_exl3 {
    uint32_t what, half_bits;
    enum exl3_codebook codebook;
};

static struct expert_exl3 expert_exl3(const struct op_case *c, uint32_t e, uint32_t part) {
    uint32_t nth = e * 3 + part, type = c->size[5] % PICKS_SAME;
    if (type == TYPES_MUL1 || type == TYPES_MCG)
        return (struct expert_exl3){200 + 3 * nth, e % 4 == 2 ? 2 + nth % 15 : 8,
                                    type == TYPES_MUL1 ? EXL3_MUL1 : EXL3_MCG};
    if (type != TYPES_EXL3 || nth == 1) return (struct expert_exl3){0};
    // Fifteen experts have every width in every codebook.
    uint32_t width = c->size[3] < 15 ? nth * 5 : nth * 7 + e;
    return (struct expert_exl3){200 + 3 * nth, 2 + width % 15, (enum exl3_codebook)(nth % 3)};
}

// Trellis, factors of the inputs, factors of the outputs, one behind the other.
static struct buf exl3_weight(const struct ops *o, const struct expert_exl3 *x, uint32_t rows,
                              uint32_t cols, struct weight *ret) {
    uint64_t words = (uint64_t)rows * cols * x->half_bits / 32;
    uint16_t *w = exl3_words(x->what, words);
    w = mem_realloc(w, (words + rows + cols) * sizeof *w);
    for (uint32_t i = 0; i < cols; i++) w[words + i] = exl3_factor(x->what + 1, i);
    for (uint32_t i = 0; i < rows; i++) w[words + cols + i] = exl3_factor(x->what + 2, i);
    struct buf b = buf_of(o, w, (words + rows + cols) * sizeof *w);
    *ret = (struct weight){.data = b.p,
                           .rows = rows,
                           .cols = cols,
                           .exl3 = {.half_bits = x->half_bits,
                                    .codebook = x->codebook,
                                    .suh = b.p + words * sizeof *w,
                                    .svh = b.p + (words + cols) * sizeof *w}};
    free(w);
    return b;
}

// part 0: gate, 1: up, 2: down
static struct buf expert_weight(const struct ops *o, const struct op_case *c, uint32_t e,
                                uint32_t part, struct weight *ret) {
    uint32_t type = c->size[5] % PICKS_SAME, d = c->size[1], i = c->size[2];
    struct expert_exl3 q = expert_exl3(c, e, part);
    if (q.half_bits) return exl3_weight(o, &q, part == 2 ? d : i, part == 2 ? i : d, ret);
    if (type == TYPES_EXL3) type = DTYPE_BF16;
    return weight_of(o, ret, 60 + e * 3 + part, part == 2 ? d : i, part == 2 ? i : d,
                     (enum dtype)(type == TYPES_MIXED ? (e + part) % 3 : type));
}

// As a model does it with a backend whose experts leave the shared one out.
static void apart(const struct ops *o, struct experts_args a) {
    const struct expert *e = &a.table[a.count];
    uint64_t wide = (uint64_t)a.rows * a.width, n = (uint64_t)a.rows * a.dim;
    struct buf gate = buf_new(o, wide * F32), up = buf_new(o, wide * F32), y = buf_new(o, n * F32);
    a.shared = 0;
    o->experts(o->ctx, &a);
    o->linear(o->ctx, &(struct linear_args){
                          .x = a.x,
                          .rows = a.rows,
                          .parts_count = 2,
                          .parts = {{.w = e->gate, .y = gate.p}, {.w = e->up, .y = up.p}}});
    o->swiglu(o->ctx, &(struct swiglu_args){
                          .gate = gate.p, .up = up.p, .y = gate.p, .rows = a.rows, .dim = a.width});
    o->linear(o->ctx, &(struct linear_args){.x = gate.p,
                                            .rows = a.rows,
                                            .parts_count = 1,
                                            .parts = {{.w = e->down, .y = y.p}}});
    o->expert_sum(
        o->ctx,
        &(struct expert_sum_args){
            .h = a.h, .routed = a.y, .shared = y.p, .gate = a.gate, .rows = a.rows, .dim = a.dim});
    buf_free(o, &gate);
    buf_free(o, &up);
    buf_free(o, &y);
}

// By schedule: all rows in one call, or some at a time.
static void feed_experts(const struct ops *o, const struct op_case *c, uint32_t schedule,
                         const struct experts_args *all) {
    for (uint32_t at = 0; at < c->size[0];) {
        uint32_t left = c->size[0] - at, k = c->size[4];
        uint32_t n = (uint32_t)(mix_u64((uint64_t)schedule << 32 | at) % (schedule * 4 + 1)) + 1;
        struct experts_args a = *all;
        a.rows = schedule ? min_u32(n, left) : left;
        a.x += (uint64_t)at * a.dim * F32;
        a.y += (uint64_t)at * a.dim * F32;
        a.h += (uint64_t)at * a.dim * F32;
        a.gate += (uint64_t)at * F32;
        a.experts += (uint64_t)at * k * sizeof(uint32_t);
        a.weights += (uint64_t)at * k * F32;
        if (a.shared && !o->experts_shared)
            apart(o, a);
        else
            o->experts(o->ctx, &a);
        at += a.rows;
    }
}

static void run_experts(const struct ops *o, const struct op_case *c, uint32_t schedule,
                        float *ret) {
    uint32_t t = c->size[0], k = c->size[4], n = c->size[3], *ids = mem_alloc(t * k * sizeof *ids);
    uint32_t shared = c->size[5] & WITH_SHARED ? 1 : 0, all_experts = n + shared;
    struct expert *table = mem_calloc(all_experts, sizeof *table);
    struct buf *w = mem_calloc(3 * all_experts, sizeof *w);
    struct experts_args a = {.table = table,
                             .rows = t,
                             .shared = shared,
                             .dim = c->size[1],
                             .width = c->size[2],
                             .count = n,
                             .per_token = k};
    float *weights = mem_alloc(t * k * F32);
    for (uint32_t i = 0; i < t * k; i++) {
        ids[i] = pick_of(c, i / k, i % k);
        weights[i] = pick_weight(c, i / k, i % k);
    }
    for (uint32_t e = 0; e < all_experts; e++)
        for (uint32_t p = 0; p < 3; p++)
            w[e * 3 + p] = expert_weight(o, c, e, p,
                                         p == 0   ? &table[e].gate
                                         : p == 1 ? &table[e].up
                                                  : &table[e].down);
    struct buf x = buf_fine(o, 51, (uint64_t)t * a.dim), y = buf_fine(o, 53, (uint64_t)t * a.dim);
    struct buf picks = buf_of(o, ids, t * k * sizeof *ids), pw = buf_of(o, weights, t * k * F32);
    struct buf dev = buf_of(o, table, all_experts * sizeof *table);
    struct buf scratch = buf_new(o, o->experts_room(o->ctx, &a));
    struct buf h = buf_fine(o, 54, (uint64_t)t * a.dim), gate = buf_fine(o, 55, t);
    a.h = h.p;
    a.gate = gate.p;
    a.dev_table = dev.p, a.x = x.p, a.y = y.p, a.experts = picks.p, a.weights = pw.p,
    a.scratch = scratch.p;
    feed_experts(o, c, schedule, &a);
    get(o, ret, shared ? &h : &y, (uint64_t)t * a.dim);
    for (uint32_t i = 0; i < 3 * all_experts; i++) buf_free(o, &w[i]);
    struct buf *all[] = {&x, &y, &picks, &pw, &dev, &scratch, &h, &gate};
    for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) buf_free(o, all[i]);
    free(weights);
    free(table);
    free(w);
    free(ids);
}

// y = W x for a matrix of an expert.
static void ref_product(const struct op_case *c, uint32_t e, uint32_t part, const double *x,
                        double *y) {
    uint32_t rows = c->size[part == 2 ? 1 : 2], cols = c->size[part == 2 ? 2 : 1];
    struct expert_exl3 q = expert_exl3(c, e, part);
    for (uint32_t r = 0; r < rows && !q.half_bits; r++) {
        y[r] = 0;
        for (uint32_t i = 0; i < cols; i++)
            y[r] += x[i] * value(60 + e * 3 + part, (uint64_t)r * cols + i);
    }
    if (!q.half_bits) return;
    double *m = exl3_matrix(q.what, cols, rows, q.half_bits, q.codebook);
    double *in = mem_alloc(cols * sizeof *in);
    for (uint32_t i = 0; i < cols; i++) in[i] = x[i] * exl3_factor_value(q.what + 1, i);
    exl3_rotate(in, cols);
    for (uint32_t r = 0; r < rows; r++) {
        y[r] = 0;
        for (uint32_t i = 0; i < cols; i++) y[r] += in[i] * m[(uint64_t)i * rows + r];
    }
    exl3_rotate(y, rows);
    for (uint32_t r = 0; r < rows; r++) y[r] *= exl3_factor_value(q.what + 2, r);
    free(m);
    free(in);
}

static void ref_experts(const struct op_case *c, double *ret) {
    uint32_t dim = c->size[1], width = c->size[2];
    double *x = mem_alloc(dim * sizeof *x), *y = mem_alloc(dim * sizeof *y);
    double *gate = mem_alloc(width * sizeof *gate), *up = mem_alloc(width * sizeof *up);
    for (uint32_t t = 0; t < c->size[0]; t++, ret += dim) {
        for (uint32_t d = 0; d < dim; d++) x[d] = fine(51, (uint64_t)t * dim + d);
        uint32_t shared = c->size[5] & WITH_SHARED ? 1 : 0;
        for (uint32_t k = 0; k < c->size[4] + shared; k++) {
            bool last = k == c->size[4];
            uint32_t e = last ? c->size[3] : pick_of(c, t, k);
            double weight =
                last ? 1 / (1 + exp(-(double)fine(55, t))) : (double)pick_weight(c, t, k);
            ref_product(c, e, 0, x, gate);
            ref_product(c, e, 1, x, up);
            for (uint32_t i = 0; i < width; i++) gate[i] = ref_silu(gate[i]) * up[i];
            ref_product(c, e, 2, gate, y);
            for (uint32_t d = 0; d < dim; d++) ret[d] += weight * y[d];
            for (uint32_t d = 0; d < dim && last; d++) ret[d] += fine(54, (uint64_t)t * dim + d);
        }
    }
    free(x);
    free(y);
    free(gate);
    free(up);
}

/* expert_sum: T, D */
static void run_expert_sum(const struct ops *o, const struct op_case *c, uint32_t schedule,
                           float *ret) {
    uint64_t n = (uint64_t)c->size[0] * c->size[1];
    struct buf h = buf_fine(o, 54, n), routed = buf_fine(o, 55, n), shared = buf_fine(o, 56, n);
    struct buf gate = buf_fine(o, 57, c->size[0]);
    o->expert_sum(o->ctx, &(struct expert_sum_args){.h = h.p,
                                                    .routed = routed.p,
                                                    .shared = shared.p,
                                                    .gate = gate.p,
                                                    .rows = c->size[0],
                                                    .dim = c->size[1]});
    get(o, ret, &h, n);
    buf_free(o, &h);
    buf_free(o, &routed);
    buf_free(o, &shared);
    buf_free(o, &gate);
}

static void ref_expert_sum(const struct op_case *c, double *ret) {
    for (uint64_t i = 0; i < (uint64_t)c->size[0] * c->size[1]; i++)
        ret[i] = (double)fine(54, i) + fine(55, i) +
                 fine(56, i) / (1 + exp(-(double)fine(57, i / c->size[1])));
}

/* draw: T, V, kind of rows. Ids. A backend without it draws on the host, which is the reference. */
enum { DRAW_SPREAD, DRAW_TIES, DRAW_BROKEN };

static float draw_logit(const struct op_case *c, uint64_t i) {
    float x = fine(80, i) * 8;
    if (c->size[2] == DRAW_TIES) return floorf(x / 2);
    if (c->size[2] != DRAW_BROKEN) return x;
    switch (mix_u64(i + 77) % 8) { // and one row of nothing that may be drawn
    case 0: return NAN;
    case 1: return INFINITY;
    case 2: return -0.0f;
    case 3: return 1e-40f;
    default: return i / c->size[1] == 1 || i % 5 == 0 ? -INFINITY : x;
    }
}

static uint32_t draw_used(const struct op_case *c, uint32_t word) {
    uint32_t left = c->size[1] - 32 * word, all = left < 32 ? (1u << left) - 1 : ~0u;
    return all & (uint32_t)(mix_u64(word + 5) | mix_u64(word + 6));
}

// Every second row greedy in one way or the other; every third with min_p.
static struct sample_params draw_params(uint32_t row) {
    static const double heat[] = {1, 0, 0.3, 1e-6, 2, 0.7};
    return (struct sample_params){.temperature = heat[row % 6],
                                  .top_p = 1,
                                  .min_p = row % 3 ? 0 : 0.05,
                                  .repetition = 1,
                                  .seed = mix_u64(row + 1)};
}

static float *draw_logits(const struct op_case *c) {
    uint64_t n = (uint64_t)c->size[0] * c->size[1];
    float *x = mem_alloc(n * F32);
    for (uint64_t i = 0; i < n; i++) x[i] = draw_logit(c, i);
    return x;
}

static uint32_t *draw_bits(const struct op_case *c) {
    uint32_t words = ceil_div_u32(c->size[1], 32), *used = mem_alloc(words * sizeof *used);
    for (uint32_t i = 0; i < words; i++) used[i] = draw_used(c, i);
    return used;
}

static void ref_draw(const struct op_case *c, double *ret) {
    struct sample *s = sample_new(c->size[1]);
    float *logits = draw_logits(c);
    uint32_t *used = draw_bits(c);
    for (uint32_t t = 0; t < c->size[0]; t++) {
        struct sample_params p = draw_params(t);
        struct sample_mask mask = {.used_bits = used};
        ret[t] = sample_draw(s, logits + (uint64_t)t * c->size[1], &p, NULL, &mask, 1000 + t);
    }
    sample_free(s);
    free(logits);
    free(used);
}

static void run_draw(const struct ops *o, const struct op_case *c, uint32_t schedule, float *ret) {
    uint32_t t = c->size[0], v = c->size[1], step = schedule ? schedule : t;
    uint32_t *used = draw_bits(c), *got = mem_calloc(t, sizeof *got);
    struct draw_row *rows = mem_calloc(t, sizeof *rows);
    double *host = mem_calloc(t, sizeof *host);
    float *x = draw_logits(c);
    for (uint32_t i = 0; i < t; i++) {
        struct sample_params p = draw_params(i);
        rows[i] = (struct draw_row){p.temperature, p.min_p, p.seed, 1000 + i};
    }
    struct buf logits = buf_of(o, x, (uint64_t)t * v * F32),
               list = buf_of(o, rows, t * sizeof *rows);
    struct buf bits = buf_of(o, used, ceil_div_u32(v, 32) * sizeof *used);
    struct buf ids = buf_new(o, t * sizeof *got);
    for (uint32_t i = 0; i < t && o->draw; i += step)
        o->draw(o->ctx, &(struct draw_args){.logits = logits.p + (uint64_t)i * v * F32,
                                            .rows = list.p + i * sizeof *rows,
                                            .used_bits = bits.p,
                                            .ids = ids.p + i * sizeof *got,
                                            .rows_count = min_u32(step, t - i),
                                            .vocab = v});
    o->read(o->ctx, got, ids.p, t * sizeof *got);
    if (!o->draw) ref_draw(c, host);
    for (uint32_t i = 0; i < t; i++) ret[i] = o->draw ? (float)got[i] : (float)host[i];
    struct buf *all[] = {&logits, &list, &bits, &ids};
    for (uint32_t i = 0; i < 4; i++) buf_free(o, all[i]);
    free(x);
    free(rows);
    free(used);
    free(got);
    free(host);
}

// (n + 1) / 2 and (n + 5) / 6 more rows than the longest stream's n
#define STREAM_ROWS(n) ((n) + ((n) + 1) / 2 + ((n) + 5) / 6)
#define LINEAR(t, k, n, n2, d)                                                                     \
    { "linear", {t, k, n, n2, d}, 2e-6, (t) * ((n) + (n2)), run_linear, ref_linear, 3e-3 }
#define EXL3(t, k, n, half_bits, codebook, bias)                                                   \
    {                                                                                              \
        "exl3", {t, k, n, half_bits, codebook, bias}, 2e-6, (t) * (2 * (n) + 26), run_exl3,        \
            ref_exl3, 3e-3                                                                         \
    }
#define EMBED(t, d, v, ty)                                                                         \
    { "embed", {t, d, v, 0, ty}, 0, (t) * (d), run_embed, ref_embed, 0 }
#define RMSNORM(t, d, n)                                                                           \
    { "rmsnorm", {t, d, n}, 1e-6, (t) * (d), run_rmsnorm, ref_rmsnorm, 0 }
#define SWIGLU(t, i)                                                                               \
    { "swiglu", {t, i}, 1e-6, (t) * (i), run_swiglu, ref_swiglu, 0 }
#define ROPE(t, p)                                                                                 \
    { "rope", {t, p}, 1e-7, (t)*2 * (p), run_rope, ref_rope, 0 }
#define GATES(t, nv)                                                                               \
    { "delta_gates", {t, nv}, 3e-6, (t)*2 * (nv), run_gates, ref_gates, 0 }
#define DELTA_NORM(t, nk, dk, v)                                                                   \
    {                                                                                              \
        "delta_norm", {t, nk, dk, v}, 1e-6, (t) * (2 * (nk) * (dk) + (v)), run_delta_norm,         \
            ref_delta_norm, 0                                                                      \
    }
#define GATED_NORM(t, nv, dv)                                                                      \
    { "gated_norm", {t, nv, dv}, 1e-6, (t) * (nv) * (dv), run_gated_norm, ref_gated_norm, 0 }
#define ATTN(n, h, kv, dim, p, ty, tol)                                                            \
    { "attn", {n, h, kv, dim, p, ty}, tol, STREAM_ROWS(n) * (h) * (dim), run_attn, ref_attn, 0 }
// Rows of n: those of stream 0, then of stream 1, ..
#define AT_ROWS(n, streams)                                                                        \
    ((n) + ((streams) > 1 ? ((n) + 1) / 2 : 0) + ((streams) > 2 ? ((n) + 2) / 3 : 0) +             \
     ((streams) > 3 ? ((n) + 3) / 4 : 0))
#define ATTN_AT(pos, n, h, kv, streams, ty)                                                        \
    {                                                                                              \
        "attn", {pos, n, h, kv, streams, ty}, 0, AT_ROWS(n, streams) * (h)*AT_DIM, run_attn_at,    \
            NULL, 0                                                                                \
    }
#define CONV(n, c)                                                                                 \
    { "conv", {n, c}, 1e-6, STREAM_ROWS(n) * (c), run_conv, ref_conv, 0 }
#define SCAN(n, nk, nv, dk, dv)                                                                    \
    { "delta_scan", {n, nk, nv, dk, dv}, 5e-6, STREAM_ROWS(n) * (nv) * (dv), run_scan, ref_scan, 0 }
#define MIX(n, nk, nv, dk, dv)                                                                     \
    { "delta_mix", {n, nk, nv, dk, dv}, 5e-6, STREAM_ROWS(n) * (nv) * (dv), run_mix, ref_mix, 0 }

#define ROUTER(t, e, k, kind)                                                                      \
    { "router", {t, e, k, kind}, 1e-6, 2 * (t) * (k), run_router, ref_router, 0 }
#define EXPERTS(t, d, i, e, k, ty)                                                                 \
    { "experts", {t, d, i, e, k, ty}, 3e-6, (t) * (d), run_experts, ref_experts, 6e-3 }
#define EXPERT_SUM(t, d)                                                                           \
    { "expert_sum", {t, d}, 1e-6, (t) * (d), run_expert_sum, ref_expert_sum, 0 }

#define DRAW(t, v, kind)                                                                           \
    { "draw", {t, v, kind}, 0, t, run_draw, ref_draw, 0 }

const struct op_case op_cases[] = {
    LINEAR(1, 1, 1, 0, DTYPE_F32),
    LINEAR(1, 15, 9, 2, DTYPE_BF16),
    LINEAR(2, 16, 8, 1, DTYPE_F16),
    LINEAR(3, 17, 7, 12, DTYPE_BF16),
    LINEAR(4, 33, 31, 3, DTYPE_F32),
    LINEAR(5, 250, 33, 20, DTYPE_F16),
    LINEAR(6, 64, 130, 0, DTYPE_BF16),
    LINEAR(7, 100, 5, 5, DTYPE_F32),
    LINEAR(16, 256, 96, 64, DTYPE_BF16),
    LINEAR(13, 1000, 70, 9, DTYPE_BF16),
    LINEAR(29, 96, 200, 40, DTYPE_F16),
    LINEAR(9, 1024, 33, 17, DTYPE_F16),
    LINEAR(3, 4101, 40, 7, DTYPE_BF16),
    LINEAR(2, 4160, 9, 0, DTYPE_BF16),
    LINEAR(17, 1100, 13, 6, DTYPE_BF16), // several blocks of rows, k in pieces of 1,024
    LINEAR(26, 2050, 9, 0, DTYPE_F16),
    EXL3(1, 128, 128, 8, EXL3_MUL1, 0),
    EXL3(2, 1152, 128, 5, EXL3_MUL1, 1),
    EXL3(5, 256, 384, 2, EXL3_MCG, 0),
    EXL3(7, 2304, 128, 16, EXL3_3INST, 1),
    EXL3(13, 384, 256, 15, EXL3_MUL1, 0),
    EXL3(67, 256, 256, 7, EXL3_MUL1, 0),
    EXL3(131, 128, 128, 6, EXL3_MCG, 1),
    EXL3(3, 4224, 128, 3, EXL3_3INST, 0),
    EXL3(2, 1152, 128, 8, EXL3_MUL1, EXL3_NORM),
    EXL3(3, 256, 256, 7, EXL3_MUL1, EXL3_SWIGLU | EXL3_ALONE),
    EXL3(2, 384, 128, 6, EXL3_MCG, EXL3_NORM),
    EXL3(2, 384, 128, 6, EXL3_MUL1, EXL3_SWIGLU),
    EMBED(1, 1, 3, DTYPE_F32),
    EMBED(9, 50, 11, DTYPE_BF16),
    EMBED(40, 256, 100, DTYPE_F16),
    RMSNORM(1, 1, 1),
    RMSNORM(3, 31, 5),
    RMSNORM(70, 256, 40),
    SWIGLU(1, 1),
    SWIGLU(3, 17),
    SWIGLU(20, 512),
    ROPE(1, 4),
    ROPE(60, 32),
    GATES(1, 1),
    GATES(5, 17),
    GATES(33, 48),
    DELTA_NORM(1, 1, 3, 2),
    DELTA_NORM(9, 2, 16, 64),
    DELTA_NORM(20, 16, 128, 5),
    GATED_NORM(1, 1, 16),
    GATED_NORM(7, 4, 48),
    GATED_NORM(20, 4, 128),
    ATTN(1, 1, 1, 16, 4, DTYPE_F32, 3e-6),
    ATTN(70, 2, 1, 32, 4, DTYPE_F32, 3e-6),
    ATTN(131, 6, 2, 64, 8, DTYPE_F32, 3e-6),
    ATTN(200, 2, 1, 256, 32, DTYPE_F32, 3e-6),
    ATTN(131, 4, 2, 48, 8, DTYPE_BF16, 2e-2),
    ATTN(290, 12, 1, 16, 2, DTYPE_BF16, 2e-2),
    ATTN(140, 6, 2, 64, 8, DTYPE_E4M3, 2e-2),
    CONV(1, 1),
    CONV(9, 33),
    CONV(50, 256),
    SCAN(1, 1, 1, 1, 16),
    SCAN(20, 1, 3, 7, 16),
    SCAN(40, 2, 4, 32, 48),
    SCAN(60, 2, 4, 128, 128),
    MIX(1, 1, 1, 16, 16),
    MIX(30, 2, 4, 32, 48),
    MIX(20, 1, 3, 128, 128),
    ROUTER(1, 1, 1, LOGITS_FINE),
    ROUTER(3, 5, 5, LOGITS_FINE),
    ROUTER(20, 17, 3, LOGITS_TIED),
    ROUTER(9, 33, 8, LOGITS_EQUAL),
    ROUTER(70, 256, 8, LOGITS_FINE),
    ROUTER(11, 512, 10, LOGITS_TIED),
    EXPERTS(1, 1, 1, 1, 1, DTYPE_F32),
    EXPERTS(1, 40, 24, 7, 3, DTYPE_BF16),              // most experts have no row
    EXPERTS(13, 33, 17, 5, 1, DTYPE_F16 | PICKS_SAME), // one expert has them all
    EXPERTS(30, 64, 48, 11, 4, DTYPE_BF16),
    EXPERTS(50, 48, 40, 70, 4, DTYPE_BF16), // more experts and picks than go through at once
    EXPERTS(17, 100, 36, 3, 3, DTYPE_F32),  // every expert has every row
    EXPERTS(40, 96, 130, 13, 2, TYPES_MIXED),
    EXPERTS(21, 128, 72, 6, 2, TYPES_MIXED | PICKS_SAME),
    EXPERTS(5, 256, 128, 5, 2, TYPES_EXL3),
    EXPERTS(1, 256, 128, 4, 2, TYPES_MUL1 | WITH_SHARED),
    EXPERTS(12, 128, 128, 3, 2, TYPES_MUL1 | WITH_SHARED),
    EXPERTS(3, 128, 256, 5, 2, TYPES_EXL3 | WITH_SHARED),
    EXPERTS(10, 40, 24, 7, 3, TYPES_MIXED | WITH_SHARED),
    EXPERT_SUM(1, 1),
    EXPERT_SUM(7, 50),
    EXPERT_SUM(30, 256),
    DRAW(1, 1, DRAW_SPREAD),
    DRAW(13, 45, DRAW_TIES),
    DRAW(40, 1000, DRAW_SPREAD),
    DRAW(40, 4096, DRAW_TIES),
    DRAW(12, 3001, DRAW_BROKEN),
};
const uint32_t op_cases_count = sizeof op_cases / sizeof *op_cases;

// X(rows, ..) for the counts of rows where kernels change their shape.
#define EACH_ROWS(X, ...)                                                                          \
    X(1, __VA_ARGS__), X(2, __VA_ARGS__), X(3, __VA_ARGS__), X(8, __VA_ARGS__),                    \
        X(16, __VA_ARGS__), X(17, __VA_ARGS__), X(64, __VA_ARGS__), X(128, __VA_ARGS__),           \
        X(256, __VA_ARGS__)
#define EACH_INT(X, ...)                                                                           \
    X(1, __VA_ARGS__), X(2, __VA_ARGS__), X(3, __VA_ARGS__), X(4, __VA_ARGS__), X(5, __VA_ARGS__), \
        X(8, __VA_ARGS__), X(9, __VA_ARGS__), X(16, __VA_ARGS__)
#define EACH_MANY(X, ...)                                                                          \
    X(31, __VA_ARGS__), X(33, __VA_ARGS__), X(65, __VA_ARGS__), X(127, __VA_ARGS__),               \
        X(129, __VA_ARGS__), X(257, __VA_ARGS__), X(300, __VA_ARGS__)
#define EACH_CODEBOOK(half_bits)                                                                   \
    EXL3(3, 256, 128, half_bits, EXL3_3INST, 0), EXL3(9, 128, 256, half_bits, EXL3_MCG, 1),        \
        EXL3(2, 256, 128, half_bits, EXL3_MUL1, 0), EXL3(6, 1152, 256, half_bits, EXL3_MUL1, 1)

const struct op_case op_cases_rows[] = {
    EACH_ROWS(LINEAR, 1056, 200, 40, DTYPE_BF16),
    EACH_ROWS(LINEAR, 4128, 48, 0, DTYPE_BF16),
    EACH_ROWS(LINEAR, 515, 70, 33, DTYPE_F16),
    EACH_ROWS(LINEAR, 200, 50, 3, DTYPE_F32),
    EACH_ROWS(LINEAR, 2056, 300, 48, DTYPE_BF16),
    LINEAR(1, 5120, 2600, 48, DTYPE_BF16), // several tiles of outputs for the same warps
    LINEAR(6, 1032, 4400, 96, DTYPE_F16),
    LINEAR(4, 17408, 48, 7, DTYPE_BF16),
    LINEAR(5, 17408, 48, 7, DTYPE_BF16), // too long to keep in shared memory
    LINEAR(9, 4104, 33, 9, DTYPE_BF16),
    LINEAR(32, 5120, 48, 48, DTYPE_BF16),
    LINEAR(33, 600, 700, 20, DTYPE_F16),
    LINEAR(65, 1100, 150, 9, DTYPE_BF16),
    LINEAR(129, 4100, 130, 5, DTYPE_F16),
    EACH_ROWS(EXL3, 1152, 256, 7, EXL3_MUL1, 1),
    EACH_ROWS(EXL3, 4224, 128, 6, EXL3_MCG, 0),
    EXL3(1, 5120, 256, 8, EXL3_MCG, 0),
    EXL3(8, 4096, 256, 8, EXL3_3INST, 1),
    EXL3(9, 4224, 128, 8, EXL3_MCG, 0),
    EXL3(32, 2176, 128, 12, EXL3_3INST, 0),
    EXL3(33, 1024, 384, 8, EXL3_MCG, 1),
    EXL3(65, 2048, 128, 6, EXL3_3INST, 0),
    EXL3(5, 384, 5120, 8, EXL3_MCG, 1),
    EXL3(11, 128, 16384, 6, EXL3_MCG, 0),      // outputs for many blocks
    EXL3(3, 1024, 128 * 620, 12, EXL3_MCG, 0), // and for chains of all segments
    EACH_INT(EXL3, 128, 128, 8, EXL3_MUL1, EXL3_BIAS | EXL3_ROW),
    EACH_INT(EXL3, 5120, 256, 7, EXL3_MUL1, EXL3_CHANNEL),
    EACH_INT(EXL3, 384, 896, 12, EXL3_MUL1, EXL3_OTHER | EXL3_ROW),
    EACH_INT(EXL3, 640, 1664, 5, EXL3_MUL1, 0),
    EXL3(3, 17408, 128, 8, EXL3_MUL1, 0),
    EACH_INT(EXL3, 5120, 128, 8, EXL3_MUL1, EXL3_NORM),
    EACH_INT(EXL3, 4224, 128, 6, EXL3_MUL1, EXL3_NORM | EXL3_ALONE | EXL3_CHANNEL),
    EACH_INT(EXL3, 640, 256, 8, EXL3_MUL1, EXL3_SWIGLU | EXL3_ALONE),
    EACH_INT(EXL3, 384, 128, 8, EXL3_MUL1, EXL3_SWIGLU | EXL3_ROW),
    EACH_INT(EXL3, 384, 128, 8, EXL3_MUL1, EXL3_OTHER | EXL3_NORM | EXL3_ROW),
    EACH_INT(EXL3, 1152, 128, 6, EXL3_3INST, EXL3_NORM),
    EACH_INT(EXL3, 1152, 128, 8, EXL3_MCG, EXL3_SWIGLU | EXL3_ALONE),
    EACH_INT(EXL3, 4224, 128, 8, EXL3_MCG, EXL3_NORM | EXL3_ALONE),
    EXL3(1, 8320, 128, 8, EXL3_MUL1, EXL3_NORM), // rows that are kept in part
    EXL3(2, 17408, 128, 8, EXL3_MUL1, EXL3_SWIGLU | EXL3_ALONE),
    EXL3(2, 18176, 128, 8, EXL3_MUL1, EXL3_SWIGLU | EXL3_ALONE),
    EXL3(3, 20608, 128, 4, EXL3_MUL1, 0),
    EACH_MANY(EXL3, 128, 128, 8, EXL3_MUL1, EXL3_BIAS | EXL3_ROW),
    EACH_MANY(EXL3, 640, 384, 7, EXL3_MUL1, EXL3_CHANNEL),
    EACH_MANY(EXL3, 384, 256, 5, EXL3_MUL1, EXL3_OTHER),
    EXL3(130, 5120, 128, 6, EXL3_MUL1, EXL3_CHANNEL),
    EXL3(700, 1024, 640, 10, EXL3_MUL1, EXL3_BIAS),
    EXL3(260, 5120, 256, 8, EXL3_MUL1, EXL3_CHANNEL),
    EXL3(390, 1024, 384, 8, EXL3_MCG, EXL3_BIAS | EXL3_OTHER),
    EXL3(450, 384, 640, 6, EXL3_3INST, 0),
    EXL3(401, 2176, 128, 12, EXL3_MCG, 0),
    EXL3(577, 128, 128, 5, EXL3_3INST, EXL3_ROW),
    EACH_CODEBOOK(2),
    EACH_CODEBOOK(3),
    EACH_CODEBOOK(4),
    EACH_CODEBOOK(5),
    EACH_CODEBOOK(6),
    EACH_CODEBOOK(7),
    EACH_CODEBOOK(8),
    EACH_CODEBOOK(9),
    EACH_CODEBOOK(10),
    EACH_CODEBOOK(11),
    EACH_CODEBOOK(12),
    EACH_CODEBOOK(13),
    EACH_CODEBOOK(14),
    EACH_CODEBOOK(15),
    EACH_CODEBOOK(16),
    EACH_ROWS(EMBED, 5120, 300, DTYPE_BF16),
    EACH_ROWS(RMSNORM, 5120, 256),
    EACH_ROWS(RMSNORM, 1000, 30),
    EACH_ROWS(SWIGLU, 1730),
    EACH_ROWS(ROPE, 32),
    EACH_ROWS(GATES, 48),
    EACH_ROWS(DELTA_NORM, 16, 128, 77),
    EACH_ROWS(GATED_NORM, 12, 128),
    EACH_ROWS(ATTN, 6, 1, 256, 32, DTYPE_BF16, 2e-2),
    EACH_ROWS(ATTN, 9, 1, 64, 8, DTYPE_E4M3, 2e-2),
    EACH_ROWS(ATTN, 4, 2, 128, 16, DTYPE_F32, 2e-2),
    ATTN(700, 2, 2, 32, 4, DTYPE_BF16, 2e-2),
    ATTN(200, 3, 1, 256, 32, DTYPE_E4M3, 2e-2),
    ATTN(130, 8, 1, 256, 32, DTYPE_BF16, 2e-2),
    ATTN(130, 2, 2, 256, 32, DTYPE_E4M3, 2e-2),
    ATTN(80, 6, 2, 128, 16, DTYPE_BF16, 2e-2),
    ATTN(80, 6, 2, 128, 16, DTYPE_E4M3, 2e-2),
    ATTN_AT(0, 1, 6, 1, 1, DTYPE_BF16), // positions at the borders of tiles, chunks and groups
    ATTN_AT(63, 2, 6, 1, 2, DTYPE_BF16),
    ATTN_AT(255, 2, 6, 1, 1, DTYPE_E4M3),
    ATTN_AT(1000, 1, 6, 2, 3, DTYPE_BF16),
    ATTN_AT(2047, 8, 6, 1, 2, DTYPE_BF16),
    ATTN_AT(2300, 16, 6, 1, 1, DTYPE_BF16),
    ATTN_AT(2559, 17, 3, 1, 1, DTYPE_BF16),
    ATTN_AT(1023, 65, 6, 1, 1, DTYPE_BF16),
    ATTN_AT(500, 64, 6, 1, 3, DTYPE_E4M3),
    ATTN_AT(100, 200, 6, 1, 1, DTYPE_BF16),
    ATTN_AT(8190, 4, 6, 1, 1, DTYPE_BF16),
    ATTN_AT(9000, 1, 6, 1, 4, DTYPE_E4M3),
    ATTN_AT(8185, 17, 2, 1, 2, DTYPE_BF16),
    ATTN_AT(8800, 3, 8, 1, 1, DTYPE_E4M3),
    ATTN_AT(17000, 1, 1, 1, 4, DTYPE_BF16),
    ATTN_AT(300, 9, 264, 264, 1, DTYPE_BF16), // so many that no context is cut
    EACH_ROWS(CONV, 1030),
    EACH_ROWS(SCAN, 2, 6, 128, 128),
    SCAN(65, 1, 2, 256, 32),
    SCAN(7, 1, 1, 100, 80), // rows and columns of no round count
    SCAN(300, 1, 3, 128, 48),
    EACH_ROWS(MIX, 2, 6, 128, 128),
    MIX(7, 16, 48, 128, 128),
    MIX(300, 1, 2, 128, 128),
    MIX(33, 1, 2, 256, 128),
    EACH_ROWS(ROUTER, 256, 8, LOGITS_FINE),
    EACH_ROWS(EXPERTS, 272, 136, 12, 4, DTYPE_BF16),
    EACH_ROWS(EXPERTS, 1040, 72, 5, 2, TYPES_MIXED),
    EACH_ROWS(EXPERTS, 1152, 128, 3, 2, TYPES_EXL3),
    EXPERTS(8, 256, 128, 15, 8, TYPES_EXL3),
    EXPERTS(17, 128, 256, 15, 8, TYPES_EXL3),
    EXPERTS(2, 2304, 1024, 4, 3, TYPES_EXL3), // segments that end within a rotation
    EACH_ROWS(EXPERTS, 1152, 128, 6, 2, TYPES_MUL1 | WITH_SHARED),
    EACH_ROWS(EXPERTS, 384, 256, 20, 3, TYPES_EXL3 | WITH_SHARED),
    EXPERTS(1, 2048, 512, 12, 8, TYPES_MUL1 | WITH_SHARED),
    EXPERTS(3, 2048, 512, 12, 8, TYPES_MUL1 | WITH_SHARED),
    EXPERTS(9, 2048, 512, 12, 8, TYPES_MUL1 | WITH_SHARED),
    EXPERTS(20, 2048, 512, 12, 8, TYPES_MUL1 | WITH_SHARED),
    EXPERTS(1, 2048, 512, 10, 8, TYPES_MCG | WITH_SHARED),
    EXPERTS(5, 2048, 512, 10, 4, TYPES_MCG | WITH_SHARED),
    EXPERTS(40, 1024, 512, 30, 4, TYPES_MCG | WITH_SHARED | PICKS_SAME),
    EXPERTS(300, 128, 128, 600, 8, TYPES_MUL1 | WITH_SHARED),
    EXPERTS(3, 2048, 512, 7, 4, DTYPE_BF16),
    EXPERTS(4, 4104, 520, 5, 2, DTYPE_F16),
    EACH_ROWS(EXPERT_SUM, 2048),
    EACH_ROWS(DRAW, 5000, DRAW_SPREAD),
    DRAW(12, 248320, DRAW_SPREAD),
    DRAW(12, 248320, DRAW_BROKEN),
};
const uint32_t op_cases_rows_count = sizeof op_cases_rows / sizeof *op_cases_rows;

#define EXL3_SIZES(t, half_bits, codebook, inputs)                                                 \
    EXL3(t, 5120, 128, half_bits, codebook, inputs),                                               \
        EXL3(t, 17408, 128, half_bits, codebook, inputs)
#define EXL3_INPUTS(t, half_bits, codebook)                                                        \
    EXL3_SIZES(t, half_bits, codebook, EXL3_NORMAL),                                               \
        EXL3_SIZES(t, half_bits, codebook, EXL3_NORMAL | EXL3_FIFTY)
const struct op_case op_cases_products[] = {
    EXL3_INPUTS(2, 8, EXL3_MUL1),
    EXL3_INPUTS(2, 8, EXL3_MCG),
    EXL3_INPUTS(2, 7, EXL3_MUL1),
    EXL3_INPUTS(17, 8, EXL3_MUL1),
    EXL3_INPUTS(40, 8, EXL3_MCG),
    EXL3(130, 5120, 128, 7, EXL3_MUL1, EXL3_NORMAL),
    EXL3(130, 17408, 128, 7, EXL3_MUL1, EXL3_NORMAL | EXL3_FIFTY),
    EXL3(600, 5120, 128, 8, EXL3_MUL1, EXL3_NORMAL),
    EXL3(600, 5120, 128, 8, EXL3_MUL1, EXL3_NORMAL | EXL3_FIFTY),
    EXL3(600, 5120, 128, 8, EXL3_MCG, EXL3_NORMAL),
    EXL3(600, 5120, 128, 6, EXL3_3INST, EXL3_NORMAL),
};
const uint32_t op_cases_products_count = sizeof op_cases_products / sizeof *op_cases_products;

// The first part of the case alone: [T, N].
static void run_products(const struct ops *o, const struct op_case *c, float *ret) {
    struct exl3_bufs b;
    struct linear_args a;
    exl3_args(o, c, &b, &a);
    a.parts_count = 1;
    o->linear(o->ctx, &a);
    get(o, ret, &b.y[0], (uint64_t)c->size[0] * c->size[2]);
    exl3_free(o, &b);
}

double op_cases_error(const struct ops *o, const struct op_case *c) {
    uint32_t k = c->size[1], n = c->size[2];
    double *m = exl3_matrix(30, k, n, c->size[3], (enum exl3_codebook)c->size[4]);
    double *x = mem_alloc(k * sizeof *x), *want = mem_alloc(n * sizeof *want), off = 0, all = 0;
    float *got = mem_calloc((size_t)c->size[0] * n, sizeof *got), *y = got;
    run_products(o, c, got);
    for (uint32_t r = 0; r < c->size[0]; r++, y += n) {
        for (uint32_t i = 0; i < k; i++) x[i] = exl3_input(c, r, i) * exl3_factor_value(31, i);
        exl3_rotate(x, k);
        ref_exl3_row(c, m, x, want);
        for (uint32_t i = 0; i < n; i++) {
            off += (y[i] - want[i]) * (y[i] - want[i]);
            all += want[i] * want[i];
        }
    }
    free(m);
    free(x);
    free(want);
    free(got);
    return sqrt(off / all);
}

uint64_t op_cases_digest(uint64_t h, const float *v, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        h = mix_u64(h ^ bits) + 0x9e3779b97f4a7c15u;
    }
    return h;
}
