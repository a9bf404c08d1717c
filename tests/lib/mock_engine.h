/* mock_engine: an engine of a tiny model over the mock driver. */
#pragma once
#include "tests/lib/cuda_mock.h"
#include "worker/engine/engine.h"

// A new mock card, and a configuration whose engine runs on it. Both stand until the next call.
struct engine_config mock_engine(const struct cuda_mock_config *card, const char *tiny);
