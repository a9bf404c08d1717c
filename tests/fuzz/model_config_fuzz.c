/* model_config_fuzz: any bytes as config.json are refused with a one-line message or give a config whose sizes are in
 * range and agree with each other. */
#include "common/err.h"
#include "worker/engine/model_config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(bool right) {
    if (!right) abort();
}

static void check_config(const struct model_config *c) {
    check(c->hidden >= 1 && c->hidden <= MODEL_HIDDEN_MAX);
    check(c->layers >= 1 && c->layers <= MODEL_LAYERS_MAX && c->full_layers <= c->layers);
    check(c->vocab >= 1 && c->vocab <= MODEL_VOCAB_MAX);
    check(c->heads >= 1 && c->kv_heads >= 1 && c->heads % c->kv_heads == 0);
    check(c->linear_key_heads >= 1 && c->linear_value_heads % c->linear_key_heads == 0);
    check(model_config_linear_conv_width(c) <= MODEL_WIDTH_MAX);
    check(c->rope.rotary_dim >= 2 && c->rope.rotary_dim <= c->head_dim &&
          c->rope.rotary_dim % 2 == 0);
    check(c->rope.theta >= 1 && c->rms_norm_eps > 0);
    check(c->eos_count <= MODEL_EOS_MAX);
    check(c->moe ? c->experts_per_token <= c->experts && c->experts : c->intermediate >= 1);
    check(memchr(c->model_type, 0, sizeof c->model_type) && memchr(c->dtype, 0, sizeof c->dtype));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static struct model_config c;
    struct err e = {0};
    if (model_config_parse(&c, "x", (const char *)bytes, len, &e))
        check(e.st != ST_OK && e.msg[0] && !strchr(e.msg, '\n'));
    else
        check_config(&c);
    return 0;
}
