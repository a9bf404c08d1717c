/* report: what has been loaded, where its memory went and how much it can serve. Logged as a whole, so that it is not torn. */
#include "common/log.h"
#include "common/strbuf.h"
#include "common/version.h"
#include "worker/cmd.h"
#include "worker/engine/engine.h"
#include "worker/options.h"

#include <stdio.h>

static double gib(uint64_t bytes) {
    return (double)bytes / (1 << 30);
}

static void add_region(struct strbuf *b, const struct engine_region *r) {
    bool small = r->bytes < 1 << 20; // three digits of GiB would show nothing
    strbuf_printf(b, "    %-24s %9.3f %s\n", r->name,
                  small ? (double)r->bytes / (1 << 10) : gib(r->bytes), small ? "KiB" : "GiB");
}

static void add_regions(struct strbuf *b, const struct engine_info *info) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < info->regions_count; i++) sum += info->regions[i].bytes;
    strbuf_printf(b, "  memory     %.3f GiB in all\n", gib(sum));
    for (uint32_t i = 0; i < info->regions_count; i++) add_region(b, &info->regions[i]);
    if (!info->pinned_bytes) return;
    add_region(b, &(struct engine_region){"pinned host memory", info->pinned_bytes});
    if (info->graphs)
        add_region(b, &(struct engine_region){"graphs of rounds", info->graphs_bytes});
    add_region(b, &(struct engine_region){"left on the card", info->device_free_bytes});
}

void report_loaded(const struct options *o, const struct engine_info *info) {
    struct strbuf b = {0};
    strbuf_printf(&b, "railyard-worker %s (%s)\n", version_string(), version_commit());
    strbuf_printf(&b, "  model      %s: %s, %u layers, %.1f M parameters\n", o->model,
                  info->model_type, info->layers, (double)info->parameters / 1e6);
    if (info->experts_rule && *info->experts_rule)
        strbuf_printf(&b, "  experts    %s\n", info->experts_rule);
    strbuf_printf(&b, "  device     %s (%s), %u threads; %s\n", info->device, info->variant,
                  info->threads, info->kv_rule);
    strbuf_printf(&b, "  weights    %.3f GiB, KV %.3f, states %.3f, scratch %.3f\n",
                  gib(info->weights_bytes), gib(info->kv_bytes), gib(info->state_bytes),
                  gib(info->scratch_bytes));
    add_regions(&b, info);
    strbuf_printf(&b, "  embedding  %.3f GiB, %s\n", gib(info->embedding_bytes),
                  info->embedding_rule);
    strbuf_printf(
        &b,
        "  serves     %u streams, contexts up to %u, %u of them whole; %u KV blocks of %u "
        "tokens\n",
        info->streams_max, info->context_max, info->streams_whole, info->kv_blocks_total,
        info->kv_block_tokens);
    strbuf_printf(&b, "  drafts     %s\n", info->draft_rule);
    if (info->draft_rows > 1) strbuf_printf(&b, "  costs      %s\n", info->costs_rule);
    strbuf_printf(&b, "  checkpoint %.16s...; %s\n", info->checkpoint_digest, info->rope_rule);
    log_raw(b.p, b.len);
    log_info("loaded", "streams=%u context=%u weights_gib=%.3f", info->streams_max,
             info->context_max, gib(info->weights_bytes));
    strbuf_fini(&b);
}
