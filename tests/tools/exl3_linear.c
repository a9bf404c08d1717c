/* exl3_linear: see exl3_linear.h. Matrices are [inputs, outputs] inside, as the format has them. */
#include "tests/tools/exl3_linear.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/cpu_pool.h"
#include "kernels/linear/exl3_decode.h"
#include "tests/lib/half.h"
#include "tests/tools/exl3_trellis.h"

#include <math.h>
#include <stdlib.h>

enum { RETRIES = 4 };
static const double DAMPING = 0.025, RETRY_DAMPING = 0.05; // of the mean of the diagonal
static const double EMPTY_ROW = 0.1;                       // deviation given to a row of zeros

struct maker {
    const struct exl3_source *s;
    uint32_t ins, outs;
    double *r;       // [ins, outs] scaled and rotated
    double *q;       // [ins, outs] its coded values; rows not coded yet hold r, so that r - q is 0
    double *feed;    // [ins, ins] block factor below the diagonal, or NULL
    double *su, *sv; // the stored factors
    struct exl3_linear *l;
    // of the row of tiles being coded
    struct trellis_coder *coder;
    struct trellis_room **rooms; // by thread
    double *target;              // [16, outs]
    uint32_t first;              // its first input
};

// 128 numbers, `step` apart, times the Sylvester matrix over sqrt(128).
static void rotate(double *v, size_t step) {
    for (uint32_t d = 1; d < EXL3_BLOCK; d *= 2)
        for (uint32_t i = 0; i < EXL3_BLOCK; i++)
            if (!(i & d)) {
                double a = v[i * step], b = v[(i + d) * step];
                v[i * step] = a + b;
                v[(i + d) * step] = a - b;
            }
    for (uint32_t i = 0; i < EXL3_BLOCK; i++) v[i * step] *= M_SQRT1_2 / 8;
}

static void rotate_rows(double *m, uint32_t rows, uint32_t cols) {
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c += EXL3_BLOCK) rotate(m + (size_t)r * cols + c, 1);
}

static void rotate_columns(double *m, uint32_t rows, uint32_t cols) {
    for (uint32_t r = 0; r < rows; r += EXL3_BLOCK)
        for (uint32_t c = 0; c < cols; c++) rotate(m + (size_t)r * cols + c, cols);
}

static double sign_of(const struct exl3_source *s, uint32_t side, uint32_t channel) {
    uint64_t h = mix_u64(s->seed + side + 1);
    for (const char *p = s->name; *p; p++) h = mix_u64(h ^ (uint8_t)*p);
    return mix_u64(h ^ channel) & 1 ? -1 : 1;
}

static double deviation(const double *v, uint32_t count, size_t step) {
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += v[i * step] * v[i * step];
    return sqrt(sum / count);
}

// The fp16 number nearest to x, but not 0.
static uint16_t factor_of(double x) {
    uint16_t h = half_of(x);
    return h & 0x7fff ? h : h | 1;
}

// Columns to one deviation: svh. A column of zeros keeps factor 0 and comes out as zeros exactly.
static void scale_columns(struct maker *m) {
    double mean = 0;
    uint32_t used = 0;
    double *d = mem_alloc(m->outs * sizeof *d);
    for (uint32_t n = 0; n < m->outs; n++) {
        d[n] = deviation(m->r + n, m->ins, m->outs);
        if (d[n] > 0) mean += d[n], used++;
    }
    mean = used ? mean / used : 1;
    for (uint32_t n = 0; n < m->outs; n++) {
        double sv = sign_of(m->s, 0, n) * (d[n] > 0 ? d[n] / mean : 1);
        m->l->svh[n] = d[n] > 0 ? factor_of(sv) : 0;
        m->sv[n] = d[n] > 0 ? (double)half_to(m->l->svh[n]) : 0;
        for (uint32_t k = 0; k < m->ins && d[n] > 0; k++) m->r[(size_t)k * m->outs + n] /= m->sv[n];
    }
    free(d);
}

// Rows to the deviation that the coder likes best: suh.
static void scale_rows(struct maker *m) {
    double want = trellis_input_deviation(m->s->codebook, m->s->half_bits);
    for (uint32_t k = 0; k < m->ins; k++) {
        double *row = m->r + (size_t)k * m->outs, d = deviation(row, m->outs, 1);
        m->l->suh[k] = factor_of(sign_of(m->s, 1, k) * (d > 0 ? d : EMPTY_ROW) / want);
        m->su[k] = (double)half_to(m->l->suh[k]);
        for (uint32_t n = 0; n < m->outs; n++) row[n] /= m->su[k];
    }
}

// a = c c^T in place, the lower half. False when a is not positive.
static bool cholesky(double *a, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j <= i; j++) {
            double sum = a[(size_t)i * n + j];
            for (uint32_t k = 0; k < j; k++) sum -= a[(size_t)i * n + k] * a[(size_t)j * n + k];
            if (i == j && !(sum > 0)) return false;
            a[(size_t)i * n + j] = i == j ? sqrt(sum) : sum / a[(size_t)j * n + j];
        }
    return true;
}

// Block column b of c, times the inverse of its diagonal block from the right, below that block.
static void unit_block_column(double *c, uint32_t n, uint32_t b) {
    for (uint32_t i = b + EXL3_TILE; i < n; i++) {
        double *row = c + (size_t)i * n + b;
        for (uint32_t j = EXL3_TILE; j-- > 0;) { // row = y D, D lower triangular: the last first
            for (uint32_t k = j + 1; k < EXL3_TILE; k++)
                row[j] -= row[k] * c[(size_t)(b + k) * n + b + j];
            row[j] /= c[(size_t)(b + j) * n + b + j];
        }
    }
}

// The moments in the coordinates of r, damped.
static double *moments_rotated(const struct maker *m, double extra) {
    uint32_t n = m->ins;
    double *h = mem_alloc((size_t)n * n * sizeof *h), mean = 0;
    for (uint32_t i = 0; i < n; i++) mean += (double)m->s->moments[(size_t)i * n + i] / n;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++) {
            double v = (double)m->s->moments[(size_t)i * n + j];
            if (i == j) v += (DAMPING + extra) * mean;
            h[(size_t)i * n + j] = v * m->su[i] * m->su[j];
        }
    rotate_rows(h, n, n);
    rotate_columns(h, n, n);
    return h;
}

static int make_feed(struct maker *m, struct err *e) {
    uint32_t n = m->ins;
    for (int attempt = 0; attempt < RETRIES; attempt++) {
        double *h = moments_rotated(m, attempt * RETRY_DAMPING);
        if (cholesky(h, n)) {
            for (uint32_t b = 0; b < n; b += EXL3_TILE) unit_block_column(h, n, b);
            m->feed = h;
            return ST_OK;
        }
        free(h);
    }
    return err_set(e, ST_CORRUPT, "%s: its moments have no Cholesky factor", m->s->name);
}

// target = the rows' own values and what they take over from the rows behind them.
static void set_target(struct maker *m) {
    for (uint32_t j = 0; j < EXL3_TILE; j++) {
        double *to = m->target + (size_t)j * m->outs;
        memcpy(to, m->r + (size_t)(m->first + j) * m->outs, m->outs * sizeof *to);
        for (uint32_t i = m->first + EXL3_TILE; i < m->ins && m->feed; i++) {
            double f = m->feed[(size_t)i * m->ins + m->first + j];
            const double *r = m->r + (size_t)i * m->outs, *q = m->q + (size_t)i * m->outs;
            for (uint32_t n = 0; n < m->outs; n++) to[n] += f * (r[n] - q[n]);
        }
    }
}

static void code_tile(void *arg, uint32_t tile, uint32_t thread) {
    struct maker *m = arg;
    float x[TRELLIS_SYMBOLS];
    uint16_t states[TRELLIS_SYMBOLS];
    uint32_t n = tile * EXL3_TILE, bytes = exl3_tile_bytes(m->s->half_bits);
    for (uint32_t t = 0; t < TRELLIS_SYMBOLS; t++)
        x[t] =
            (float)
                m->target[(size_t)trellis_symbol_row(t) * m->outs + n + trellis_symbol_column(t)];
    trellis_code(m->coder, m->rooms[thread], x, states);
    size_t at = (size_t)(m->first / EXL3_TILE) * (m->outs / EXL3_TILE) + tile;
    trellis_pack(m->coder, states, (uint8_t *)m->l->trellis + at * bytes);
    for (uint32_t t = 0; t < TRELLIS_SYMBOLS; t++)
        m->q[(size_t)(m->first + trellis_symbol_row(t)) * m->outs + n + trellis_symbol_column(t)] =
            (double)trellis_value(m->coder, states[t]);
}

static void code(struct maker *m, struct cpu_pool *pool) {
    uint32_t threads = cpu_pool_threads(pool);
    m->coder = trellis_coder_new(m->s->codebook, m->s->half_bits);
    m->rooms = mem_calloc(threads, sizeof *m->rooms);
    for (uint32_t i = 0; i < threads; i++) m->rooms[i] = trellis_room_new();
    m->target = mem_alloc((size_t)EXL3_TILE * m->outs * sizeof *m->target);
    for (m->first = m->ins; m->first;) {
        m->first -= EXL3_TILE;
        set_target(m);
        cpu_pool_run(pool, m->outs / EXL3_TILE, code_tile, m);
    }
    for (uint32_t i = 0; i < threads; i++) trellis_room_free(m->rooms[i]);
    free(m->rooms);
    free(m->target);
    trellis_coder_free(m->coder);
}

static void decode_tile(const void *tile, const struct exl3_source *s, float *ret) {
    if (s->codebook == EXL3_MUL1)
        exl3_tile(tile, s->half_bits, EXL3_MUL1, ret, EXL3_TILE);
    else if (s->codebook == EXL3_MCG)
        exl3_tile(tile, s->half_bits, EXL3_MCG, ret, EXL3_TILE);
    else
        exl3_tile(tile, s->half_bits, EXL3_3INST, ret, EXL3_TILE);
}

void exl3_linear_dense(const struct exl3_linear *l, const struct exl3_source *s, double *ret) {
    uint32_t ins = s->cols, outs = s->rows, bytes = exl3_tile_bytes(s->half_bits);
    const uint8_t *tile = (const uint8_t *)l->trellis;
    float v[EXL3_TILE * EXL3_TILE];
    for (uint32_t k = 0; k < ins; k += EXL3_TILE)
        for (uint32_t n = 0; n < outs; n += EXL3_TILE, tile += bytes) {
            decode_tile(tile, s, v);
            for (uint32_t i = 0; i < EXL3_TILE * EXL3_TILE; i++)
                ret[(size_t)(n + i / EXL3_TILE) * ins + k + i % EXL3_TILE] = (double)v[i];
        }
    rotate_rows(ret, outs, ins);
    rotate_columns(ret, outs, ins);
    for (uint32_t n = 0; n < outs; n++)
        for (uint32_t k = 0; k < ins; k++)
            ret[(size_t)n * ins + k] *= (double)half_to(l->suh[k]) * (double)half_to(l->svh[n]);
}

// The sum over rows of v^T H v; H NULL: the identity.
static double energy(const double *rows, uint32_t count, uint32_t n, const float *h) {
    double sum = 0;
    double *t = mem_alloc(n * sizeof *t);
    for (uint32_t r = 0; r < count; r++) {
        const double *v = rows + (size_t)r * n;
        if (h) {
            memset(t, 0, n * sizeof *t);
            for (uint32_t i = 0; i < n; i++)
                for (uint32_t j = 0; j < n; j++) t[j] += v[i] * (double)h[(size_t)i * n + j];
        }
        for (uint32_t j = 0; j < n; j++) sum += v[j] * (h ? t[j] : v[j]);
    }
    free(t);
    return sum;
}

static double ratio(double a, double b) {
    return b > 0 ? a / b : 0;
}

static void measure(struct maker *m) {
    const struct exl3_source *s = m->s;
    size_t count = (size_t)s->rows * s->cols;
    double *w = mem_alloc(count * sizeof *w), *off = mem_alloc(count * sizeof *off);
    exl3_linear_dense(m->l, s, off);
    for (size_t i = 0; i < count; i++) {
        w[i] = (double)s->w[i];
        off[i] -= w[i];
    }
    m->l->weight_loss =
        ratio(energy(off, s->rows, s->cols, NULL), energy(w, s->rows, s->cols, NULL));
    m->l->output_loss = NAN;
    if (s->moments)
        m->l->output_loss = ratio(energy(off, s->rows, s->cols, s->moments),
                                  energy(w, s->rows, s->cols, s->moments));
    free(w);
    free(off);
}

static int check_source(const struct exl3_source *s, struct err *e) {
    if (s->rows == 0 || s->cols == 0 || s->rows % EXL3_BLOCK || s->cols % EXL3_BLOCK)
        return err_set(e, ST_INVAL, "%s: wanted sizes that are multiples of %d, found [%u, %u]",
                       s->name, EXL3_BLOCK, s->rows, s->cols);
    if (s->half_bits < EXL3_HALF_BITS_MIN || s->half_bits > EXL3_HALF_BITS_MAX ||
        (s->half_bits % 2 && s->codebook != EXL3_MUL1))
        return err_set(e, ST_INVAL, "%s: wanted 1 to 8 bits, halves with MUL1 alone, found %g",
                       s->name, s->half_bits / 2.0);
    for (size_t i = 0; i < (size_t)s->rows * s->cols; i++)
        if (!isfinite(s->w[i]))
            return err_set(e, ST_INVAL, "%s: weight %zu is not finite", s->name, i);
    for (size_t i = 0; s->moments && i < (size_t)s->cols * s->cols; i++)
        if (!isfinite(s->moments[i]))
            return err_set(e, ST_INVAL, "%s: moment %zu is not finite", s->name, i);
    return ST_OK;
}

int exl3_linear_make(struct exl3_linear *ret, const struct exl3_source *s, struct cpu_pool *pool,
                     struct err *e) {
    int st = check_source(s, e);
    if (st) return st;
    size_t count = (size_t)s->rows * s->cols;
    struct exl3_linear l = {.trellis_bytes = count * s->half_bits / 16,
                            .suh = mem_alloc(s->cols * sizeof *l.suh),
                            .svh = mem_alloc(s->rows * sizeof *l.svh)};
    struct maker m = {.s = s, .ins = s->cols, .outs = s->rows, .l = &l};
    l.trellis = mem_alloc(l.trellis_bytes);
    m.r = mem_alloc(count * sizeof *m.r);
    m.su = mem_alloc(s->cols * sizeof *m.su);
    m.sv = mem_alloc(s->rows * sizeof *m.sv);
    for (uint32_t n = 0; n < s->rows; n++)
        for (uint32_t k = 0; k < s->cols; k++)
            m.r[(size_t)k * s->rows + n] = (double)s->w[(size_t)n * s->cols + k];
    scale_columns(&m);
    rotate_rows(m.r, m.ins, m.outs);
    scale_rows(&m);
    rotate_columns(m.r, m.ins, m.outs);
    if (s->moments) st = make_feed(&m, e);
    if (!st) {
        m.q = mem_alloc(count * sizeof *m.q);
        memcpy(m.q, m.r, count * sizeof *m.q);
        code(&m, pool);
        measure(&m);
        *ret = l;
        l = (struct exl3_linear){0};
    }
    exl3_linear_fini(&l);
    free(m.r);
    free(m.q);
    free(m.su);
    free(m.sv);
    free(m.feed);
    return st;
}

void exl3_linear_fini(struct exl3_linear *l) {
    free(l->trellis);
    free(l->suh);
    free(l->svh);
    *l = (struct exl3_linear){0};
}
