/* mock_engine: see mock_engine.h. */
#include "tests/lib/mock_engine.h"
#include "kernels/ops.h"
#include "tests/lib/tiny_model.h"

// A build without nvcc has no kernels; the mock counts their launches all the same.
static void take_any(void *arg, struct ops *o) {}

struct engine_config mock_engine(const struct cuda_mock_config *card, const char *tiny) {
    static struct cuda_driver driver;
    cuda_mock_open(&driver, card);
    return (struct engine_config){.model_dir = tiny_model(tiny),
                                  .backend = "cuda",
                                  .driver = &driver,
                                  .on_ops = take_any,
                                  .threads = 1,
                                  .context_max = 512,
                                  .streams_max = 4};
}
