/* plan: what a model would take of a GPU that is not here, by the code that lays out a real one. Start-up tool, any thread. */
#pragma once
#include <stdint.h>

#include "worker/engine/carve.h"
#include "worker/engine/engine.h"

struct plan_ask {
    const struct engine_config
        *config;   // model_dir, context_max, streams_max, kv, embedding, scratch ..
    uint64_t room; // bytes free on the card
    uint32_t sm;   // 90 for compute capability 9.0
    bool unified;
};

struct plan {
    struct carve_region regions[CARVE_REGIONS_MAX];
    uint32_t regions_count;
    uint64_t arena_bytes, room; // room: beside the graphs
    uint64_t graphs_bytes;      // of rounds, about
    bool embedding_on_host;
    const char *embedding_why; // a literal
    uint64_t embedding_bytes;
    uint64_t staging_bytes; // pinned host memory that the backend takes in any case
    uint32_t context_max, streams_max, streams_whole, pages, page_tokens;
    uint64_t union_saves; // bytes of scratch that lie over one another
};

// What engine_new would refuse of the checkpoint, the drafter's folder, the file of costs and the settings before it looks at a device.
int plan_check(const struct engine_config *config, struct err *e);
// ST_NOMEM as engine_new would say it; other trouble of the checkpoint or the settings by name.
int plan_make(struct plan *ret, const struct plan_ask *a, struct err *e);
