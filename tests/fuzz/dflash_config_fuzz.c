/* dflash_config_fuzz: any bytes as a drafter's config.json are refused with a one-line message or give a config whose sizes are in range
 * and fit the target: the demo's, or what the file says itself. */
#include "common/err.h"
#include "worker/engine/dflash_config.h"
#include "worker/engine/model_config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(bool right) {
    if (!right) abort();
}

static void check_taps(const struct dflash_config *c) {
    check(c->taps_count >= 1 && c->taps_count <= DFLASH_TAPS_MAX);
    for (uint32_t i = 0; i < c->taps_count; i++) {
        check(c->taps[i] < c->target_layers);
        for (uint32_t k = 0; k < i; k++) check(c->taps[k] != c->taps[i]);
    }
}

static void check_spans(const struct dflash_config *c) {
    check(c->spans_count <= DRAFT_PARTS_MAX);
    for (uint32_t i = 0; i < c->spans_count; i++)
        check(c->spans[i].count && c->spans[i].first < c->vocab &&
              c->spans[i].count <= c->vocab - c->spans[i].first);
}

static void check_config(const struct dflash_config *c) {
    check(c->hidden >= 1 && c->hidden <= MODEL_HIDDEN_MAX && c->vocab >= 1);
    check(c->layers >= 1 && c->layers <= DFLASH_LAYERS_MAX);
    check(c->heads >= 1 && c->kv_heads >= 1 && c->heads % c->kv_heads == 0);
    check(c->head_dim >= 2 && c->head_dim <= DRAFT_HEAD_DIM_MAX && c->head_dim % 2 == 0);
    check(c->block >= 2 && c->block <= DFLASH_BLOCK_MAX && c->mask_id < c->vocab);
    check(dflash_config_ids_max(c) >= 1 && dflash_config_ids_max(c) < DRAFT_BLOCK_MAX);
    check(c->rope_theta >= 1 && c->rms_norm_eps > 0 && c->top >= 1 && c->top <= DRAFT_TOP_MAX);
    for (uint32_t i = 0; i < c->layers; i++) check(!c->sliding[i] || c->window >= 2);
    check(!c->v2 || (c->conv_group && c->hidden % c->conv_group == 0 && c->conv_taps && c->rank));
    check_taps(c);
    check_spans(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static const struct dflash_target demo = {.hidden = 256, .layers = 8, .vocab = 4096};
    static struct dflash_config c;
    for (int own = 0; own < 2; own++) {
        struct err e = {0};
        if (dflash_config_parse(&c, "x", (const char *)bytes, len, own ? NULL : &demo, &e))
            check(e.st != ST_OK && e.msg[0] && !strchr(e.msg, '\n'));
        else
            check_config(&c);
        check(!own || e.st || dflash_config_is((const char *)bytes, len));
    }
    return 0;
}
