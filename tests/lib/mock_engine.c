/* mock_engine: see mock_engine.h. */
#include "tests/lib/mock_engine.h"
#include "kernels/ops.h"
#include "tests/lib/tiny_model.h"

static void nothing(void *ctx, const void *args) {}

static uint64_t no_room(void *ctx, const struct experts_args *a) {
    return 0;
}

// Operations that have no kernel do nothing here.
static void fill_missing(void *arg, struct ops *o) {
    void (**all[])(void *, const void *) = {
        (void *)&o->embed,       (void *)&o->rmsnorm,    (void *)&o->linear,
        (void *)&o->swiglu,      (void *)&o->rope,       (void *)&o->kv_append,
        (void *)&o->attn,        (void *)&o->conv,       (void *)&o->conv_store,
        (void *)&o->delta_gates, (void *)&o->delta_norm, (void *)&o->delta_scan,
        (void *)&o->gated_norm,  (void *)&o->router,     (void *)&o->experts,
        (void *)&o->expert_sum};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (!*all[i]) *all[i] = nothing;
    if (!o->experts_room) o->experts_room = no_room;
}

struct engine_config mock_engine(const struct cuda_mock_config *card, const char *tiny) {
    static struct cuda_driver driver;
    cuda_mock_open(&driver, card);
    return (struct engine_config){.model_dir = tiny_model(tiny),
                                  .backend = "cuda",
                                  .driver = &driver,
                                  .on_ops = fill_missing,
                                  .threads = 1,
                                  .context_max = 512,
                                  .streams_max = 4};
}
