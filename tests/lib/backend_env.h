/* backend_env: which backend the tests of the engine run on: the CPU, or what tests/gpu/run.py names in the environment. */
#pragma once
#include <stdlib.h>

#include "worker/engine/engine.h"

static inline void backend_env(struct engine_config *c) {
    const char *backend = getenv("RAILYARD_BACKEND"), *kv = getenv("RAILYARD_KV");
    if (!c->backend) c->backend = backend ? backend : "cpu";
    if (!c->kv && kv) c->kv = kv;
    // A card is not taken whole by a test: several engines live at once.
    if (!c->memory_fraction && backend) c->memory_fraction = 0.05;
}
