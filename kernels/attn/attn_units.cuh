/* attn_units: how blocks share the attention of a round: units, parts of long contexts, and how parts are gathered.
 *
 * Queries (a row's heads of one key head, row after row) of a run make pieces of up to `queries`. A unit is a piece, a key head
 * and a span of the context: one chunk (fine), a group of chunks (coarse), or all of it (whole), whichever the scratch has room
 * for; the bits are the same. What a span gave is a part: an entry of scratch a row and key head. The last
 * unit of a group to end joins the group's chunks, the last group of a piece joins the groups. */
#pragma once
#include "kernels/attn/attn_params.h"
#include "kernels/attn/attn_pipe.cuh"
#include "kernels/attn/kv_order.h"
#include "kernels/cuda/device.cuh"

enum attn_mode { ATTN_WHOLE, ATTN_COARSE, ATTN_FINE };

struct attn_work { // of a launch
    uint32_t mode, units;
};

struct attn_unit {
    uint32_t slot;                // of the stream
    uint32_t row, pos;            // of the run's first row
    uint32_t first, count;        // queries of the run: the piece's first, how many
    uint32_t head;                // key head
    uint32_t tile, end;           // its tiles: the first, behind the last
    uint32_t chunk, group;        // of the first tile
    uint32_t chunks, groups;      // of the piece's context
    uint32_t run_chunks, entries; // of the run's context; entries a row and key head
    uint32_t entry, counter;      // the run's first entry; the piece's and head's first counter
    uint32_t mode;
};

struct attn_need { // of a run
    uint32_t pieces, chunks, groups, units, entries, counters;
};

DEVICE_FN uint32_t attn_spans(uint32_t mode, uint32_t chunks, uint32_t groups) {
    return mode == ATTN_FINE ? chunks : mode == ATTN_COARSE ? groups : 1;
}

DEVICE_FN uint32_t attn_entries(uint32_t mode, uint32_t chunks, uint32_t groups) {
    if (attn_spans(mode, chunks, groups) == 1) return 0;
    return mode == ATTN_FINE && groups > 1 ? chunks + groups : attn_spans(mode, chunks, groups);
}

// split: runs of up to p.few rows; else the others.
DEVICE_FN struct attn_need attn_need(const struct attn_params &p, const struct run *r,
                                     uint32_t mode, bool split, uint32_t queries) {
    struct attn_need n = {0, 0, 0, 0, 0, 0};
    if ((r->count <= p.few) != split) return n;
    uint32_t heads = p.a.kv.heads, tile = (r->pos + r->count - 1) / ATTN_TILE;
    n.pieces = (r->count * (p.a.heads / heads) + queries - 1) / queries;
    n.chunks = attn_chunk_of(tile) + 1;
    n.groups = tile / ATTN_GROUP_TILES + 1;
    n.units = attn_spans(mode, n.chunks, n.groups) * n.pieces * heads;
    n.entries = attn_entries(mode, n.chunks, n.groups) * r->count * heads;
    n.counters = mode == ATTN_WHOLE ? 0 : n.pieces * heads * (mode == ATTN_FINE ? n.groups + 1 : 1);
    return n;
}

DEVICE_FN uint32_t attn_warp_sum(uint32_t v) {
#pragma unroll
    for (int d = WARP / 2; d; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

DEVICE_FN uint32_t attn_warp_before(uint32_t v) { // sum of the lanes before
    uint32_t lane = threadIdx.x % WARP, sum = v;
#pragma unroll
    for (uint32_t d = 1; d < WARP; d *= 2) {
        uint32_t o = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += o;
    }
    return sum - v;
}

// A warp's: what a mode makes of the runs; no units where there is no room for it.
DEVICE_FN struct attn_work attn_work_of(const struct attn_params &p, uint32_t mode, bool split,
                                        uint32_t queries) {
    const struct run *runs = device_ptr<const struct run>(p.a.rows.runs);
    struct attn_work w = {mode, 0};
    uint32_t entries = 0, counters = 0;
    for (uint32_t r = threadIdx.x % WARP; r < p.a.rows.runs_count; r += WARP) {
        struct attn_need n = attn_need(p, runs + r, mode, split, queries);
        w.units += n.units;
        entries += n.entries;
        counters += n.counters;
    }
    w.units = attn_warp_sum(w.units);
    entries = attn_warp_sum(entries);
    counters = attn_warp_sum(counters);
    if (entries > p.entries || ATTN_COUNTERS_FIXED + counters > p.counters_count) w.units = 0;
    return w;
}

// The finest mode that there is room for: all blocks soon have something.
DEVICE_FN struct attn_work attn_finest(const struct attn_params &p, bool split, uint32_t queries) {
    struct attn_work w = attn_work_of(p, ATTN_FINE, split, queries);
    if (!w.units) w = attn_work_of(p, ATTN_COARSE, split, queries);
    return w.units ? w : attn_work_of(p, ATTN_WHOLE, split, queries);
}

// The coarsest that gives every block two units, else the finest: parts of many queries cost time.
DEVICE_FN struct attn_work attn_coarsest(const struct attn_params &p, bool split,
                                         uint32_t queries) {
    struct attn_work w = attn_work_of(p, ATTN_WHOLE, split, queries);
    for (uint32_t mode = ATTN_COARSE; mode <= ATTN_FINE && w.units < 2 * gridDim.x; mode++) {
        struct attn_work finer = attn_work_of(p, mode, split, queries);
        if (!finer.units) break;
        w = finer;
    }
    return w;
}

// A warp's: unit `at` of the work, long ones before short ones of a run. An empty one (tile == end) is to be passed over.
DEVICE_FN struct attn_unit attn_find(const struct attn_params &p, const struct attn_work &w,
                                     uint32_t at, bool split, uint32_t queries) {
    const struct run *runs = device_ptr<const struct run>(p.a.rows.runs);
    uint32_t heads = p.a.kv.heads, group = p.a.heads / heads, lane = threadIdx.x % WARP;
    struct attn_unit u = {};
    uint32_t entry = 0, counter = ATTN_COUNTERS_FIXED;
    for (uint32_t r = 0; r < p.a.rows.runs_count; r += WARP) {
        struct attn_need n = {0, 0, 0, 0, 0, 0};
        struct run run = {};
        if (r + lane < p.a.rows.runs_count) {
            run = runs[r + lane];
            n = attn_need(p, &run, w.mode, split, queries);
        }
        uint32_t before = attn_warp_before(n.units);
        uint32_t hit = __ballot_sync(0xffffffffu, at >= before && at - before < n.units);
        u.entry = entry + attn_warp_before(n.entries);
        u.counter = counter + attn_warp_before(n.counters);
        if (!hit) {
            at -= attn_warp_sum(n.units);
            entry += attn_warp_sum(n.entries);
            counter += attn_warp_sum(n.counters);
            continue;
        }
        uint32_t from = (uint32_t)__ffs((int)hit) - 1, local = at - before, per = n.pieces * heads;
        uint32_t spans = attn_spans(w.mode, n.chunks, n.groups), all = run.count * group;
        if (lane == from) {
            uint32_t span = spans - 1 - local / per, rest = local % per;
            uint32_t piece = n.pieces - 1 - rest / heads;
            u.mode = w.mode;
            u.slot = run.slot;
            u.row = run.row;
            u.pos = run.pos;
            u.head = rest % heads;
            u.first = piece * queries;
            u.count = all - u.first < queries ? all - u.first : queries;
            u.run_chunks = n.chunks;
            u.entries = attn_entries(w.mode, n.chunks, n.groups);
            u.counter += (piece * heads + u.head) * (w.mode == ATTN_FINE ? n.groups + 1 : 1);
            uint32_t tiles = (run.pos + (u.first + u.count - 1) / group) / ATTN_TILE + 1,
                     end = tiles;
            u.chunks = attn_chunk_of(tiles - 1) + 1;
            u.groups = (tiles - 1) / ATTN_GROUP_TILES + 1;
            if (w.mode == ATTN_FINE) {
                u.chunk = span;
                u.group = attn_group_of_chunk(span);
                u.tile = attn_chunk_tile(span);
                end = attn_chunk_tile(span + 1);
            } else if (w.mode == ATTN_COARSE) {
                u.group = span;
                u.tile = span * ATTN_GROUP_TILES;
                end = u.tile + ATTN_GROUP_TILES;
            }
            u.end = end < tiles ? end : tiles;
            if (u.end < u.tile) u.end = u.tile;
        }
        uint32_t *words = reinterpret_cast<uint32_t *>(&u);
#pragma unroll
        for (uint32_t i = 0; i < sizeof u / sizeof *words; i++)
            words[i] = __shfl_sync(0xffffffffu, words[i], from);
        break;
    }
    return u;
}

// Query i of the piece: its row in the round, its head, its position.
struct attn_query {
    uint32_t row, head, in_group, pos;
};

DEVICE_FN struct attn_query attn_query_of(const struct attn_params &p, const struct attn_unit *u,
                                          uint32_t i) {
    uint32_t group = p.a.heads / p.a.kv.heads, at = u->first + i;
    struct attn_query q;
    q.in_group = at % group;
    q.row = u->row + at / group;
    q.head = u->head * group + q.in_group;
    q.pos = u->pos + at / group;
    return q;
}

// Does the unit's result go to `out` at once?
DEVICE_FN bool attn_is_final(const struct attn_unit *u) {
    return attn_spans(u->mode, u->chunks, u->groups) == 1;
}

// Where part `slot` of a query is: index of its maximum and sum, and times dim of its values.
DEVICE_FN uint64_t attn_part(const struct attn_params &p, const struct attn_unit *u,
                             const struct attn_query &q, uint32_t slot) {
    uint32_t group = p.a.heads / p.a.kv.heads;
    uint64_t entry =
        u->entry + ((uint64_t)(q.row - u->row) * p.a.kv.heads + u->head) * u->entries + slot;
    return entry * group + q.in_group;
}

DEVICE_FN uint32_t attn_unit_slot(const struct attn_unit *u) {
    return u->mode == ATTN_FINE ? u->chunk : u->group;
}

DEVICE_FN float *attn_part_values(const struct attn_params &p, uint64_t part) {
    return device_ptr<float>(p.scratch) + part * p.a.kv.dim;
}

DEVICE_FN float2 *attn_part_sum(const struct attn_params &p, uint64_t part) {
    uint32_t group = p.a.heads / p.a.kv.heads;
    return reinterpret_cast<float2 *>(device_ptr<float>(p.scratch) +
                                      (uint64_t)p.entries * group * p.a.kv.dim) +
           part;
}

DEVICE_FN float attn_gated(float value, float inverse, float gate) {
    return (value * inverse) * arith_sigmoid(gate);
}

// A warp joins parts slot .. slot + count - 1 of query i in order, and puts them into part `to`, or into the output.
enum { ATTN_TO_OUTPUT = -1, ATTN_JOIN_BATCH = 4 };
template <uint32_t DIM>
DEVICE_FN void attn_join(const struct attn_params &p, const struct attn_unit *u, uint32_t i,
                         uint32_t slot, uint32_t count, int to) {
    const uint32_t vectors = DIM / (4 * WARP), lane = threadIdx.x % WARP;
    float unit = attn_unit(p.a.scale), max = -INFINITY, sum = 0;
    struct attn_query q = attn_query_of(p, u, i);
    uint64_t part = attn_part(p, u, q, slot), step = p.a.heads / p.a.kv.heads;
    float4 all[vectors];
#pragma unroll
    for (uint32_t v = 0; v < vectors; v++) all[v] = make_float4(0, 0, 0, 0);
    for (uint32_t first = 0; first < count; first += ATTN_JOIN_BATCH) {
        uint32_t mine = first + lane % ATTN_JOIN_BATCH;
        float2 m = make_float2(-INFINITY, 0);
        float4 x[ATTN_JOIN_BATCH][vectors]; // all on their way before the first is used
        if (mine < count) m = __ldcg(attn_part_sum(p, part + mine * step));
#pragma unroll
        for (uint32_t s = 0; s < ATTN_JOIN_BATCH; s++)
            if (first + s < count)
#pragma unroll
                for (uint32_t v = 0; v < vectors; v++)
                    x[s][v] = __ldcg(reinterpret_cast<const float4 *>(
                                         attn_part_values(p, part + (first + s) * step)) +
                                     v * WARP + lane);
#pragma unroll
        for (uint32_t s = 0; s < ATTN_JOIN_BATCH; s++) {
            if (first + s >= count) break;
            float of = __shfl_sync(0xffffffffu, m.x, s), now = fmaxf(max, of);
            float old = attn_weight(max, now, unit), fresh = attn_weight(of, now, unit);
            max = now;
            sum = fmaf(__shfl_sync(0xffffffffu, m.y, s), fresh, sum * old);
#pragma unroll
            for (uint32_t v = 0; v < vectors; v++) {
                all[v].x = fmaf(x[s][v].x, fresh, all[v].x * old);
                all[v].y = fmaf(x[s][v].y, fresh, all[v].y * old);
                all[v].z = fmaf(x[s][v].z, fresh, all[v].z * old);
                all[v].w = fmaf(x[s][v].w, fresh, all[v].w * old);
            }
        }
    }
    if (to == ATTN_TO_OUTPUT) {
        uint64_t head = (uint64_t)q.row * p.a.heads + q.head;
        float4 *out = reinterpret_cast<float4 *>(device_ptr<float>(p.a.out) + head * DIM);
        const float4 *gate = reinterpret_cast<const float4 *>(device_ptr<const float>(p.a.qg) +
                                                              head * 2 * DIM + DIM);
        float inverse = 1.0f / sum;
#pragma unroll
        for (uint32_t v = 0; v < vectors; v++) {
            float4 g = gate[v * WARP + lane], y = all[v];
            out[v * WARP + lane] =
                make_float4(attn_gated(y.x, inverse, g.x), attn_gated(y.y, inverse, g.y),
                            attn_gated(y.z, inverse, g.z), attn_gated(y.w, inverse, g.w));
        }
        return;
    }
    part = attn_part(p, u, q, (uint32_t)to);
    float4 *y = reinterpret_cast<float4 *>(attn_part_values(p, part));
#pragma unroll
    for (uint32_t v = 0; v < vectors; v++) y[v * WARP + lane] = all[v];
    if (lane == 0) *attn_part_sum(p, part) = make_float2(max, sum);
}

// By THREADS threads that share barrier `id`: is this block the last of `count` to come here? Sets the counter back.
template <uint32_t THREADS>
DEVICE_FN bool attn_is_last(const struct attn_params &p, uint32_t counter, uint32_t count,
                            uint32_t *flag, uint32_t thread, uint32_t id) {
    __threadfence();
    pipe_sync(id, THREADS);
    if (thread == 0) {
        uint32_t *c = device_ptr<uint32_t>(p.counters) + counter;
        uint32_t last = atomicAdd(c, 1) == count - 1;
        if (last) *c = 0;
        *flag = last;
    }
    pipe_sync(id, THREADS);
    bool last = *flag;
    if (last) __threadfence();
    return last;
}

// After the unit's parts stand in scratch: joins what is complete.
template <uint32_t DIM, uint32_t THREADS>
DEVICE_FN void attn_gather(const struct attn_params &p, const struct attn_unit *u, uint32_t *flag,
                           uint32_t thread, uint32_t id) {
    uint32_t warp = thread / WARP, first = 0, count = u->groups;
    if (u->mode == ATTN_FINE) {
        uint32_t from = attn_group_chunk(u->group), end = attn_group_chunk(u->group + 1);
        if (end > u->chunks) end = u->chunks;
        if (!attn_is_last<THREADS>(p, u->counter + 1 + u->group, end - from, flag, thread, id))
            return;
        int to = u->groups == 1 ? ATTN_TO_OUTPUT : (int)(u->run_chunks + u->group);
        for (uint32_t i = warp; i < u->count; i += THREADS / WARP)
            attn_join<DIM>(p, u, i, from, end - from, to);
        if (u->groups == 1) return;
        first = u->run_chunks;
    }
    if (!attn_is_last<THREADS>(p, u->counter, count, flag, thread, id)) return;
    for (uint32_t i = warp; i < u->count; i += THREADS / WARP)
        attn_join<DIM>(p, u, i, first, count, ATTN_TO_OUTPUT);
}

// The next unit; asked for early, since the answer takes a microsecond.
DEVICE_FN uint32_t attn_take(const struct attn_params &p) {
    return gridDim.x + atomicAdd(device_ptr<uint32_t>(p.counters), 1);
}

// One thread of every block, at its end.
DEVICE_FN void attn_take_done(const struct attn_params &p) {
    uint32_t *c = device_ptr<uint32_t>(p.counters);
    __threadfence();
    if (atomicAdd(c + 1, 1) != gridDim.x - 1) return;
    c[0] = 0;
    c[1] = 0;
}
