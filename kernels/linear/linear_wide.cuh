/* linear_wide: a step of 64 outputs by many rows, by four warps (a group), the factors lying in shared memory in lines of 64 inputs as
 * linear_stream.cuh has its pieces: wgmma's layout with the swizzle of 128 bytes. sm_90a multiplies by wgmma, others by mma.sync: the
 * sums stand in the same places and have the same bits.
 *
 * Sums     of warp w of a group, lane 4 g + c: sum[i][j] is output 16 w + g + 8 (j / 2), row 8 i + 2 c + j % 2. */
#pragma once
#include "kernels/linear/linear_stream.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WIDE_WGMMA 1
#else
#define WIDE_WGMMA 0
#endif

enum { WIDE_GROUP = 4 * WARP, WIDE_OUTPUTS = 64, WIDE_LINE = STREAM_SPAN * 2 }; // bytes

// Piece p of line r.
DEVICE_FN uint32_t wide_piece(uint32_t r, uint32_t p) {
    return r * WIDE_LINE + (p ^ (r & 7)) * 16;
}

// What asynchronous copies have brought to shared memory is for wgmma to read from here on.
DEVICE_FN void wide_fence() {
#if WIDE_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

DEVICE_FN void wide_begin() {
#if WIDE_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

DEVICE_FN void wide_commit() {
#if WIDE_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// All but the last LEFT commits are done.
template <int LEFT> DEVICE_FN void wide_wait() {
#if WIDE_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
}

/* The lines of the rows, of which a stage has one piece of memory: by one bulk copy, which brings itself to a stage's barrier in shared
 * memory; by asynchronous copies before sm_90a. */
DEVICE_FN void wide_rows_init(uint32_t barriers, int stages) {
#if WIDE_WGMMA
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8 * i)
                         : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
#endif
}

DEVICE_FN void wide_rows_copy(uint32_t barrier, uint32_t to, const unsigned char *from,
                              uint32_t bytes) {
#if WIDE_WGMMA
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(bytes)
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                     "[%1], %2, [%3];" ::"r"(to),
                     "l"(from), "r"(bytes), "r"(barrier)
                     : "memory");
    }
#else
    for (uint32_t i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16)
        stream_16(to + i, from + i);
#endif
}

DEVICE_FN void wide_rows_wait(uint32_t barrier, uint32_t parity) {
#if WIDE_WGMMA
    asm volatile("{\n\t.reg .pred done;\n"
                 "AGAIN_%=:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra AGAIN_%=;\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#endif
}

#if WIDE_WGMMA
// A matrix of lines in shared memory: swizzle of 128 bytes, eight lines 1,024 bytes apart.
DEVICE_FN uint64_t wide_matrix(uint32_t shared) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 |
           (shared & 0x3ffff) >> 4;
}

#define WIDE_0_7 "%0,%1,%2,%3,%4,%5,%6,%7"
#define WIDE_0_15 WIDE_0_7 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WIDE_0_31 WIDE_0_15 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WIDE_0_63                                                                                  \
    WIDE_0_31 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                  \
              "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WIDE_0_95                                                                                  \
    WIDE_0_63 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"                  \
              "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WIDE_4(i) "+f"(sum[i][0]), "+f"(sum[i][1]), "+f"(sum[i][2]), "+f"(sum[i][3])
#define WIDE_8(i) WIDE_4(i), WIDE_4(i + 1)
#define WIDE_16(i) WIDE_8(i), WIDE_8(i + 2)
#define WIDE_32(i) WIDE_16(i), WIDE_16(i + 4)
#define WIDE_64(i) WIDE_32(i), WIDE_32(i + 8)
#define WIDE_STEP(n, type, sums, a, b, p, ...)                                                     \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %" p ", 0;\n\t"                         \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" sums "}, %" a \
                 ", %" b ", add, 1, 1, 0, 0;\n\t}"                                                 \
                 : __VA_ARGS__                                                                     \
                 : "l"(wide_matrix(a_lines)), "l"(wide_matrix(b_lines)), "r"((uint32_t)add))
#define WIDE_STEPS(type)                                                                           \
    if (N == 16) WIDE_STEP("16", type, WIDE_0_7, "8", "9", "10", WIDE_8(0));                       \
    if (N == 32) WIDE_STEP("32", type, WIDE_0_15, "16", "17", "18", WIDE_16(0));                   \
    if (N == 64) WIDE_STEP("64", type, WIDE_0_31, "32", "33", "34", WIDE_32(0));                   \
    if (N == 128) WIDE_STEP("128", type, WIDE_0_63, "64", "65", "66", WIDE_64(0));                 \
    if (N == 192) WIDE_STEP("192", type, WIDE_0_95, "96", "97", "98", WIDE_64(0), WIDE_32(16));
#endif

/* sum += the product of 16 inputs, or = it without `add`; with wgmma it is done when wide_wait says so. a_lines: of the group's 64
 * outputs, b_lines: of N rows, both from the step's first inputs on, in lines that start at multiples of 1,024 bytes. */
template <enum dtype D, int N>
DEVICE_FN void wide_step(float (*sum)[4], uint32_t a_lines, uint32_t b_lines, bool add) {
#if WIDE_WGMMA
    if (D == DTYPE_BF16) {
        WIDE_STEPS("bf16")
    } else {
        WIDE_STEPS("f16")
    }
#else
    uint32_t lane = threadIdx.x % WARP, step = a_lines % WIDE_LINE / 16, a[4];
    a_lines -= step * 16;
    b_lines -= step * 16;
    stream_ldmatrix(a, a_lines +
                           wide_piece(threadIdx.x % WIDE_GROUP / WARP * LINEAR_TILE + (lane & 15),
                                      step + lane / 16));
#pragma unroll
    for (int i = 0; i < N / 8; i += 2) {
        uint32_t b[4];
        stream_ldmatrix(b, b_lines +
                               wide_piece(i * 8 + (lane & 7) + lane / 16 * 8, step + lane / 8 % 2));
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (!add) sum[i + j / 4][j % 4] = 0;
        device_mma<D>(sum[i], a, b);
        device_mma<D>(sum[i + 1], a, b + 2);
    }
#endif
}

// What a block multiplies: outputs from the first on by rows, which are at most N, over some segments.
struct wide_band {
    uint32_t first, count, lines; // lines: of the outputs in a stage, a multiple of eight
    const unsigned char
        *x; // the first row's, in lines (linear_stream.cuh): [spans, all_rows, STREAM_SPAN]
    uint32_t all_rows, rows;
    uint32_t segment, segment_end;
};

// Stages in shared memory, each the lines of the outputs, then those of N rows; then a barrier for each.
struct wide_ring {
    uint32_t base, stage_bytes, barriers;
    uint32_t stage, parity; // the next to multiply; of its barrier
};

// All threads of the block. base: a multiple of 1,024.
template <int N, int STAGES>
DEVICE_FN struct wide_ring wide_ring_of(uint32_t base, uint32_t lines) {
    uint32_t stage_bytes = (lines + N) * WIDE_LINE;
    struct wide_ring r = {base, stage_bytes, base + STAGES * stage_bytes, 0, 0};
    wide_rows_init(r.barriers, STAGES);
    return r;
}

// A thread's share of the copies: a piece of every blockDim / 8-th line.
template <class Source> struct wide_copies {
    enum { MINE = 4 }; // lines of outputs, whatever the count of groups
    const Source &source;
    const struct wide_band &band;
    const uint16_t *weights[MINE];

    __device__ __forceinline__ void find() {
#pragma unroll
        for (int j = 0; j < MINE; j++) {
            uint32_t r = (threadIdx.x + j * blockDim.x) / 8;
            weights[j] = source.row(band.first + (r < band.count ? r : 0));
        }
    }

    __device__ __forceinline__ void weights_to(uint32_t stage, uint32_t k) const {
#pragma unroll
        for (int j = 0; j < MINE; j++) {
            uint32_t r = (threadIdx.x + j * blockDim.x) / 8, piece = threadIdx.x % 8;
            if (r < band.count)
                stream_piece(stage + wide_piece(r, piece), weights[j], k + piece * 8, source.cols,
                             source.quick);
        }
    }

    __device__ __forceinline__ void rows_to(uint32_t stage, uint32_t barrier, uint32_t k) const {
        wide_rows_copy(barrier, stage + band.lines * WIDE_LINE,
                       band.x + (uint64_t)(k / STREAM_SPAN) * band.all_rows * WIDE_LINE,
                       band.rows * WIDE_LINE);
    }
};

// put(place of the sum, row, output) for the thread's sums, both counted from the band's first.
template <int N, class Put> DEVICE_FN void wide_each(const struct wide_band &b, const Put &put) {
    uint32_t lane = threadIdx.x % WARP, n = threadIdx.x / WARP * LINEAR_TILE + lane / 4;
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t row = i * 8 + lane % 4 * 2 + j % 2, output = n + j / 2 * 8;
            if (row < b.rows && output < b.count) put(i, j, row, output);
        }
}

/* total = the segments' sums in ascending order; each goes to finished(segment, sum) too. before() is called once, after the first
 * copies of weights and before those of rows. Source: .row(output) is where its weights start, .cols, .quick. */
template <enum dtype D, int N, int STAGES, class Source, class Before, class Finished>
DEVICE_FN void wide_product(const Source &source, const struct wide_band &band,
                            struct wide_ring &ring, float (*total)[4], const Before &before,
                            const Finished &finished) {
    uint32_t group = threadIdx.x / WIDE_GROUP,
             span = linear_segment_steps(source.cols) * LINEAR_STEP;
    uint32_t filled = (source.cols + STREAM_SPAN - 1) / STREAM_SPAN * STREAM_SPAN;
    uint32_t from = band.segment * span, to = band.segment_end * span;
    to = to < filled ? to : filled;
    wide_copies<Source> copies = {source, band};
    copies.find();
    uint32_t next = ring.stage;
    for (uint32_t i = 0; i < STAGES - 2; i++) {
        if (from + i * STREAM_SPAN < to)
            copies.weights_to(ring.base + next * ring.stage_bytes, from + i * STREAM_SPAN);
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    before();
    next = ring.stage;
    for (uint32_t i = 0; i < STAGES - 2; i++) {
        if (from + i * STREAM_SPAN < to)
            copies.rows_to(ring.base + next * ring.stage_bytes, ring.barriers + 8 * next,
                           from + i * STREAM_SPAN);
        stream_commit();
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    float sum[N / 8][4];
    for (uint32_t start = from, segment = band.segment; start < to; start += span, segment++) {
        uint32_t end = start + span < to ? start + span : to;
        for (uint32_t k = start; k < end; k += STREAM_SPAN) {
            stream_wait<STAGES - 3>();
            wide_rows_wait(ring.barriers + 8 * ring.stage, ring.parity);
            wide_fence();
            __syncthreads(); // the stage is here, and the one before last has been multiplied by all
            uint32_t at = ring.base + ring.stage * ring.stage_bytes;
            wide_begin();
#pragma unroll
            for (int s = 0; s < LINEAR_GROUP; s++)
                wide_step<D, N>(sum, at + group * WIDE_OUTPUTS * WIDE_LINE + s * 32,
                                at + band.lines * WIDE_LINE + s * 32, k != start || s);
            wide_commit();
            uint32_t ahead = k + (STAGES - 2) * STREAM_SPAN;
            if (ahead < to) {
                copies.weights_to(ring.base + next * ring.stage_bytes, ahead);
                copies.rows_to(ring.base + next * ring.stage_bytes, ring.barriers + 8 * next,
                               ahead);
            }
            stream_commit();
            wide_wait<1>();
            next = next + 1 == STAGES ? 0 : next + 1;
            ring.stage = ring.stage + 1 == STAGES ? 0 : ring.stage + 1;
            ring.parity ^= ring.stage == 0;
        }
        wide_wait<0>();
        finished(segment, sum);
#pragma unroll
        for (int i = 0; i < N / 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                total[i][j] = start == from ? sum[i][j] : total[i][j] + sum[i][j];
    }
}
