/* engine: start, end, and what is asked between rounds. See engine.h. */
#include "worker/engine/engine.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/mono.h"
#include "common/num.h"
#include "kernels/cpu_pool.h"
#include "worker/engine/engine_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The device arena: measured by budget_make, now carved for real.
static int carve_block(struct engine *eng, struct err *e) {
    struct carve c = {0};
    model_carve(&eng->model, &c, &eng->round);
    eng->block_bytes = carve_bytes(&c);
    int st = eng->ops.alloc(eng->ops.ctx, eng->block_bytes, "engine arena", &eng->block, e);
    if (st) return st;
    c = (struct carve){.base = eng->block};
    model_carve(&eng->model, &c, &eng->round);
    assert(carve_bytes(&c) == eng->block_bytes);
    for (uint32_t i = 0; i < c.regions_count; i++)
        eng->regions[i] = (struct engine_region){c.regions[i].name, c.regions[i].bytes};
    eng->info.regions = eng->regions;
    eng->info.regions_count = c.regions_count;
    return ST_OK;
}

static void free_host_rows(struct engine *eng) {
    if (eng->host_rows) eng->ops.host_free(eng->ops.ctx, eng->host_rows);
    eng->host_rows = NULL;
}

// Pinned memory may cost the card some of its own, so it is taken first and the room asked again.
static int take_host_rows(struct engine *eng, const struct engine_config *config, uint64_t less,
                          struct err *e) {
    int st = eng->ops.host_alloc(eng->ops.ctx, weights_embedding_bytes(eng->ckpt),
                                 "pinned memory of the embedding", &eng->host_rows,
                                 &eng->mapped_rows, e);
    if (!st) st = budget_make(&eng->budget, &eng->model, &eng->round, config, less, e);
    return st;
}

/* The arena, as large as the device gives: what it says is free may be more than it has in one piece. */
static int take_memory(struct engine *eng, const struct engine_config *config, struct err *e) {
    uint64_t less = 0, step = eng->ops.alloc_step;
    for (;;) {
        int st = budget_make(&eng->budget, &eng->model, &eng->round, config, less, e);
        if (!st && eng->budget.place.host && !eng->host_rows)
            st = take_host_rows(eng, config, less, e);
        if (st) return st;
        if (!eng->budget.place.host) free_host_rows(eng);
        round_fini(&eng->round);
        round_init(&eng->round, eng->model.lim.rows_max, model_runs_max(&eng->model));
        st = carve_block(eng, e);
        if (st != ST_NOMEM || !eng->ops.host_alloc) return st;
        // Ever larger steps down to what is needed, so that it is tried itself; behind it other rules hold, from small steps.
        uint64_t spare = eng->budget.room - eng->budget.need;
        less += spare ? min_u64(step, spare) : eng->ops.alloc_step;
        step = spare ? 2 * step : eng->ops.alloc_step;
    }
}

// Drafts nobody asked for by name make room for the context; else the refusal says whether it is they that lack it.
static int take_drafted_memory(struct engine *eng, const struct engine_config *config,
                               struct err *e) {
    struct err other = {0};
    int st = take_memory(eng, config, e);
    while (st == ST_NOMEM && drafts_shrink(&eng->drafts, config)) st = take_memory(eng, config, e);
    if (st != ST_NOMEM || eng->drafts.rows_max == 1) return st;
    drafts_off(&eng->drafts);
    if (!budget_make(&eng->budget, &eng->model, &eng->round, config, 0, &other))
        err_prefix(e, "with drafts ('%s'; without it would fit)", config->drafter);
    return st;
}

// What the operations use, and, for tests, NaN wherever something must be written before it is read.
static void prepare_block(struct engine *eng, const struct engine_config *config) {
    const uint32_t nan_bits = 0x7fc00000u;
    const struct ops *o = &eng->ops;
    if (config->spoil_dead) o->fill(o->ctx, eng->block, nan_bits, eng->block_bytes);
    if (o->work_give)
        o->work_give(o->ctx, eng->model.work_scratch, eng->model.work_counters, eng->model.work);
}

static int load_weights(struct engine *eng, const struct engine_config *config, struct err *e) {
    struct weights_load load = {.on_load = config->on_load,
                                .arg = config->on_load_arg,
                                .embed_rows = eng->host_rows,
                                .embed_mapped = eng->mapped_rows,
                                .rope_freq = eng->model.freq,
                                .rope_pairs = eng->model.rope.pairs};
    return weights_fill(&eng->model.w, eng->ckpt, &eng->ops, &load, e);
}

static void make_streams(struct engine *eng) {
    uint32_t n = eng->budget.streams_max, vocab = eng->vocab.size;
    eng->streams = mem_calloc(n, sizeof *eng->streams);
    eng->items = mem_calloc(n, sizeof *eng->items);
    eng->events = mem_calloc(n, sizeof *eng->events);
    eng->kept = mem_calloc(n, sizeof *eng->kept);
    drafts_make(&eng->drafts, n);
    for (uint32_t i = 0; i < n; i++) {
        eng->streams[i].slot = i;
        eng->streams[i].prompt_seen = mem_calloc(vocab, sizeof *eng->streams[i].prompt_seen);
        eng->streams[i].generated = mem_calloc(vocab, sizeof *eng->streams[i].generated);
        eng->streams[i].logprobs =
            mem_calloc(ENGINE_WINDOW_ROWS_MAX, sizeof *eng->streams[i].logprobs);
        eng->streams[i].top = mem_calloc((size_t)ENGINE_WINDOW_ROWS_MAX * ENGINE_TOP_LOGPROBS_MAX,
                                         sizeof *eng->streams[i].top);
    }
}

static void make_host(struct engine *eng) {
    uint32_t threads = cpu_pool_threads(eng->pool), piece = eng->model.lim.head_rows_max;
    eng->vocab.size = eng->model.w.head.rows;
    eng->samplers = mem_calloc(threads, sizeof(struct sample *));
    for (uint32_t i = 0; i < threads; i++) eng->samplers[i] = sample_new(eng->vocab.size);
    eng->drawn = mem_calloc((size_t)piece * MODEL_DRAW_WORDS, sizeof *eng->drawn);
    engine_find_used(eng);
    eng->host_logits = mem_alloc((size_t)piece * eng->vocab.size * sizeof *eng->host_logits);
    eng->groups = mem_calloc(piece, sizeof *eng->groups);
    make_streams(eng);
}

static uint64_t region_bytes(const struct engine *eng, const char *name) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < eng->info.regions_count; i++)
        if (!strcmp(eng->regions[i].name, name)) sum += eng->regions[i].bytes;
    return sum;
}

// "8 of 256 experts a row; packed in 40 layers, one by one in 0"
static void fill_experts(struct engine *eng) {
    const struct model_config *cfg = eng->model.cfg;
    const struct checkpoint_info *c = checkpoint_info(eng->ckpt);
    eng->info.experts_rule = eng->experts_rule;
    if (!cfg->moe) return;
    int n = snprintf(eng->experts_rule, sizeof eng->experts_rule,
                     "%u of %u experts a row; packed in %u layers, one by one in %u",
                     cfg->experts_per_token, cfg->experts, c->packed_layers, c->single_layers);
    if (c->both_layers)
        snprintf(eng->experts_rule + n, sizeof eng->experts_rule - (size_t)n,
                 "; %u layers have both forms, packed taken", c->both_layers);
}

static void fill_work(struct engine *eng) {
    const struct model_config *cfg = eng->model.cfg;
    const struct checkpoint_info *c = checkpoint_info(eng->ckpt);
    bool rows_apart = !model_tied(&eng->model);
    uint64_t rows = rows_apart ? (uint64_t)cfg->vocab * cfg->hidden : 0;
    uint64_t rows_bytes = rows_apart ? weights_embedding_bytes(eng->ckpt) : 0;
    eng->info.work = (struct engine_work){
        .bytes = c->text_bytes - c->routed_bytes - rows_bytes,
        .parameters = c->text_parameters - c->routed_parameters - rows,
        .routed_bytes = c->routed_bytes,
        .routed_parameters = c->routed_parameters,
        .experts = cfg->experts,
        .experts_per_row = cfg->experts_per_token,
        .position_macs = (uint64_t)2 * cfg->heads * cfg->head_dim * cfg->full_layers};
}

static void fill_memory(struct engine *eng) {
    struct engine_info *info = &eng->info;
    const struct ops *o = &eng->ops;
    uint32_t one = ceil_div_u32(info->context_max, KV_PAGE_TOKENS);
    info->streams_whole = min_u32(info->streams_max, info->kv_blocks_total / one);
    info->embedding_bytes = weights_embedding_bytes(eng->ckpt);
    if (!o->host_alloc) {
        snprintf(eng->embedding_rule, sizeof eng->embedding_rule, "in the checkpoint's mapping");
    } else {
        bool host = eng->budget.place.host;
        snprintf(eng->embedding_rule, sizeof eng->embedding_rule, "%s: %s",
                 host ? "in pinned host memory" : "on the card", eng->budget.place.why);
        info->pinned_bytes = o->pinned_bytes + (host ? info->embedding_bytes : 0);
        info->device_free_bytes = o->free_bytes(o->ctx);
        info->graphs = eng->graphs.count;
        info->graphs_bytes = eng->graphs.bytes;
    }
    info->embedding_rule = eng->embedding_rule;
}

static void fill_info(struct engine *eng) {
    const struct model *m = &eng->model;
    struct engine_info *info = &eng->info;
    enum dtype type = m->lim.kv_dtype;
    const char *kv = type == DTYPE_F32 ? "f32" : type == DTYPE_E4M3 ? "fp8" : "bf16";
    snprintf(eng->kv_rule, sizeof eng->kv_rule, "kv=%s state=f32 conv=f32", kv);
    checkpoint_digest(eng->ckpt, eng->digest);
    fill_experts(eng);
    info->model_type = m->cfg->moe ? "qwen3_5_moe" : "qwen3_5";
    info->device = eng->ops.device;
    info->variant = eng->ops.variant;
    info->vocab_size = eng->vocab.size;
    info->context_max = eng->budget.context_max;
    info->streams_max = eng->budget.streams_max;
    info->chunk_tokens = eng->budget.chunk_tokens;
    info->round_rows_max = eng->budget.round_rows_max;
    info->layers = m->cfg->layers;
    info->hidden = m->cfg->hidden;
    info->kv_blocks_total = eng->budget.pages;
    info->kv_block_tokens = KV_PAGE_TOKENS;
    info->weights_bytes = m->w.bytes;
    info->kv_bytes = region_bytes(eng, "kv blocks");
    info->state_bytes = region_bytes(eng, "stream states");
    info->scratch_bytes = region_bytes(eng, "scratch") + region_bytes(eng, "expert scratch") +
                          region_bytes(eng, "logits") + region_bytes(eng, "window record");
    info->checkpoint_digest = eng->digest;
    info->kv_rule = eng->kv_rule;
    info->rope_rule = m->rope.text;
    info->threads = cpu_pool_threads(eng->pool);
    info->parameters = checkpoint_info(eng->ckpt)->text_parameters;
    info->packed = checkpoint_info(eng->ckpt)->text_bytes < info->parameters * 12 / 8;
    fill_work(eng);
    info->draft_rule = eng->drafts.rule;
    info->draft_rows = eng->drafts.rows_max;
    info->drafter_bytes = eng->drafts.model_bytes;
    info->drafter = eng->drafts.has_model ? costs_kind(eng->drafts.model.kind) : NULL;
    info->drafter_kind = eng->drafts.model.kind;
    info->drafter_ids_max = eng->drafts.has_model ? eng->drafts.model.ids_max : 0;
    fill_memory(eng);
}

static int read_costs(struct engine *eng, const struct engine_config *config, struct err *e) {
    char shape[COSTS_SHAPE_BYTES];
    costs_shape(shape, &eng->info);
    int st = drafts_read_costs(&eng->drafts, config, eng->ops.device, shape, e);
    eng->info.costs_rule = eng->drafts.costs_rule;
    return st;
}

static int start(struct engine *eng, const struct engine_config *config, struct err *e) {
    int st = backend_open(&eng->backend, config, e);
    if (st) return st;
    eng->ops = eng->backend.ops;
    eng->pool = eng->backend.pool;
    st = checkpoint_open(&eng->ckpt, config->model_dir, e);
    if (!st) st = model_init(&eng->model, &eng->ops, eng->ckpt, e);
    if (st) return st;
    eng->model.scratch_disjoint = config->scratch_disjoint;
    eng->model.spoil_dead = config->spoil_dead;
    st = drafts_open(&eng->drafts, &eng->model, config, e);
    if (!st) st = graphs_begin(&eng->graphs, &eng->model, &eng->round, config, e);
    if (!st) st = take_drafted_memory(eng, config, e);
    if (st) return st;
    prepare_block(eng, config);
    st = load_weights(eng, config, e);
    if (!st && eng->drafts.has_model) st = eng->drafts.model.load(eng->drafts.model.self, e);
    if (!st) st = kvpool_new(&eng->kv, eng->budget.pages, e);
    if (st) return st;
    st = graphs_make(&eng->graphs, &eng->model, &eng->round, e);
    if (st) return st;
    make_host(eng);
    fill_info(eng);
    st = read_costs(eng, config, e);
    return st ? st : eng->ops.sync(eng->ops.ctx, e);
}

int engine_new(struct engine **ret, const struct engine_config *config, struct err *e) {
    if (config->fault >= ENGINE_FAULT_END)
        return err_set(e, ST_INVAL, "fault: wanted below %d, found %u", ENGINE_FAULT_END,
                       config->fault);
    struct engine *eng = mem_calloc(1, sizeof *eng);
    int st = start(eng, config, e);
    if (st) {
        engine_free(eng);
        return st;
    }
    eng->fault = config->fault;
    eng->model.stale_conv = config->fault == ENGINE_FAULT_STALE_CONV;
    eng->model.short_s = config->fault == ENGINE_FAULT_SHORT_S;
    eng->model.short_conv = config->fault == ENGINE_FAULT_SHORT_CONV;
    eng->model.window_rope = config->fault == ENGINE_FAULT_WINDOW_ROPE;
    eng->model.lost_branch = config->fault == ENGINE_FAULT_LOST_BRANCH;
    eng->drafts.lost_tap = config->fault == ENGINE_FAULT_LOST_TAP;
    *ret = eng;
    return ST_OK;
}

static void free_streams(struct engine *eng) {
    for (uint32_t i = 0; eng->streams && i < eng->budget.streams_max; i++) {
        eng->streams[i].live = false;
        stream_wipe(&eng->streams[i]);
        free(eng->streams[i].prompt_seen);
        free(eng->streams[i].generated);
        free(eng->streams[i].logprobs);
        free(eng->streams[i].top);
    }
    free(eng->streams);
    free(eng->items);
    free(eng->kept);
    free(eng->events);
}

void engine_free(struct engine *eng) {
    if (!eng) return;
    free_streams(eng);
    for (uint32_t i = 0; eng->samplers && i < cpu_pool_threads(eng->pool); i++)
        sample_free(eng->samplers[i]);
    free(eng->samplers);
    free(eng->host_logits);
    free(eng->drawn);
    free(eng->groups);
    free(eng->used_bits);
    free(eng->stop_ids);
    kvpool_free(eng->kv);
    round_fini(&eng->round);
    graphs_fini(&eng->graphs);
    drafts_close(&eng->drafts);
    model_fini(&eng->model);
    if (eng->block) eng->ops.free(eng->ops.ctx, eng->block, eng->block_bytes);
    free_host_rows(eng);
    checkpoint_close(eng->ckpt);
    backend_close(&eng->backend);
    free(eng);
}

const struct engine_info *engine_info(struct engine *eng) {
    eng->info.kv_blocks_used = kvpool_used(eng->kv);
    return &eng->info;
}

static int check_vocab(struct engine *eng, const struct engine_range *used, uint32_t used_count,
                       const uint32_t *stop_ids, uint32_t stop_count, struct err *e) {
    if (!engine_idle(eng)) return err_set(e, ST_INVAL, "vocabulary: wanted while no stream lives");
    if (!used_count) return err_set(e, ST_INVAL, "vocabulary: wanted ids in use, found none");
    for (uint32_t i = 0; i < used_count; i++)
        if (!used[i].count || (uint64_t)used[i].first + used[i].count > eng->vocab.size)
            return err_set(e, ST_INVAL, "used[%u]: wanted ids below %u, found %u and %u more", i,
                           eng->vocab.size, used[i].first, used[i].count);
    for (uint32_t i = 0; i < stop_count; i++)
        if (stop_ids[i] >= eng->vocab.size)
            return err_set(e, ST_INVAL, "stop_ids[%u]: wanted below %u, found %u", i,
                           eng->vocab.size, stop_ids[i]);
    return ST_OK;
}

int engine_set_vocab(struct engine *eng, const struct engine_range *used, uint32_t used_count,
                     const uint32_t *stop_ids, uint32_t stop_count, struct err *e) {
    int st = check_vocab(eng, used, used_count, stop_ids, stop_count, e);
    if (st) return st;
    free(eng->used_bits);
    free(eng->stop_ids);
    eng->used_bits = mem_calloc(ceil_div_u32(eng->vocab.size, 32), sizeof *eng->used_bits);
    for (uint32_t i = 0; i < used_count; i++)
        for (uint32_t id = used[i].first; id < used[i].first + used[i].count; id++)
            eng->used_bits[id / 32] |= 1u << id % 32;
    eng->stop_ids = mem_alloc(stop_count * sizeof *stop_ids);
    if (stop_count) memcpy(eng->stop_ids, stop_ids, stop_count * sizeof *stop_ids);
    eng->vocab.used_bits = eng->used_bits;
    engine_find_used(eng);
    eng->vocab.stop_ids = eng->stop_ids;
    eng->vocab.stop_count = stop_count;
    if (eng->ops.draw)
        eng->ops.write(eng->ops.ctx, eng->model.draw_used, eng->used_bits,
                       ceil_div_u32(eng->vocab.size, 32) * sizeof *eng->used_bits);
    return ST_OK;
}

struct stream *engine_find(struct engine *eng, uint64_t handle) {
    for (uint32_t i = 0; i < eng->budget.streams_max; i++)
        if (eng->streams[i].live && eng->streams[i].handle == handle) return &eng->streams[i];
    return NULL;
}

static struct stream *idle_stream(struct engine *eng) {
    for (uint32_t i = 0; i < eng->budget.streams_max; i++)
        if (!eng->streams[i].live) return &eng->streams[i];
    return NULL;
}

static int take_pages(struct engine *eng, struct stream *s, struct err *e) {
    s->pages_count = ceil_div_u32(s->total, KV_PAGE_TOKENS);
    s->pages = arena_alloc(&s->arena, s->pages_count * sizeof *s->pages);
    if (kvpool_take(eng->kv, s->pages_count, s->pages))
        return err_set(e, ST_FULL, "kv blocks: wanted %u, found %u of %u free", s->pages_count,
                       kvpool_total(eng->kv) - kvpool_used(eng->kv), kvpool_total(eng->kv));
    model_set_pages(&eng->model, s->slot, s->pages, s->pages_count);
    return ST_OK;
}

int engine_admit(struct engine *eng, const struct engine_request *r, struct stream **ret,
                 struct err *e) {
    int st = stream_check(r, &eng->vocab, eng->budget.context_max, e);
    if (st) return st;
    struct stream *s = idle_stream(eng);
    if (!s) return err_set(e, ST_FULL, "streams: all %u are taken", eng->budget.streams_max);
    st = stream_open(s, r, &eng->vocab, eng->budget.context_max, e);
    if (st) return st;
    st = take_pages(eng, s, e);
    if (st) {
        stream_close(s);
        return st;
    }
    drafts_begin(&eng->drafts, s, r->draft);
    s->handle = ++eng->handles;
    s->submit_us = mono_us();
    *ret = s;
    return ST_OK;
}

void engine_release(struct engine *eng, struct stream *s) {
    kvpool_give(eng->kv, s->pages, s->pages_count);
    stream_close(s);
}

int engine_submit(struct engine *eng, const struct engine_request *r, uint64_t *ret_handle,
                  struct err *e) {
    struct stream *s;
    int st = engine_admit(eng, r, &s, e);
    if (!st) *ret_handle = s->handle;
    return st;
}

bool engine_cancel(struct engine *eng, uint64_t handle) {
    struct stream *s = engine_find(eng, handle);
    if (s) engine_release(eng, s);
    return s != NULL;
}

uint64_t engine_drafts(struct engine *eng, uint64_t handle,
                       uint64_t ret_drafted[ENGINE_DRAFT_KINDS],
                       uint64_t ret_accepted[ENGINE_DRAFT_KINDS]) {
    const struct stream *s = engine_find(eng, handle);
    for (uint32_t k = 0; k < ENGINE_DRAFT_KINDS; k++) {
        ret_drafted[k] = s ? eng->drafts.slots[s->slot].drafted[k] : 0;
        ret_accepted[k] = s ? eng->drafts.slots[s->slot].accepted[k] : 0;
    }
    return s ? eng->drafts.slots[s->slot].rounds : 0;
}

bool engine_idle(struct engine *eng) {
    for (uint32_t i = 0; i < eng->budget.streams_max; i++)
        if (eng->streams[i].live) return false;
    return true;
}
