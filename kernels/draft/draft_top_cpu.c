/* draft_top_cpu: see draft_top.h. A unit is a row. */
#include "kernels/cpu.h"
#include "kernels/draft/draft_top.h"

#include <string.h>

struct best { // descending; the first `count` are taken
    uint32_t count, ids[DRAFT_TOP_MAX];
    float values[DRAFT_TOP_MAX];
};

// Behind its equals, since ids come in ascending order.
static void add(struct best *b, uint32_t k, float value, uint32_t id) {
    uint32_t at = b->count < k ? b->count++ : k - 1;
    for (; at && b->values[at - 1] < value; at--) {
        b->values[at] = b->values[at - 1];
        b->ids[at] = b->ids[at - 1];
    }
    b->values[at] = value;
    b->ids[at] = id;
}

static void top_row(void *arg, uint32_t t, uint32_t thread) {
    const struct draft_top_args *a = arg;
    struct best b = {0};
    for (uint32_t p = 0; p < a->parts_count; p++) {
        const struct draft_top_part *part = &a->parts[p];
        const float *x =
            (const float *)cpu_ptr(part->logits) + (uint64_t)t * part->stride + part->col;
        for (uint32_t i = 0; i < part->count; i++) {
            float v = x[i] == x[i] ? x[i] : -__builtin_inff();
            if (b.count < a->k || v > b.values[a->k - 1]) add(&b, a->k, v, part->id + i);
        }
    }
    memcpy((uint32_t *)cpu_ptr(a->ids) + (uint64_t)t * a->k, b.ids, a->k * sizeof *b.ids);
    memcpy((float *)cpu_ptr(a->values) + (uint64_t)t * a->k, b.values, a->k * sizeof *b.values);
}

void CPU_NAME(draft_top)(void *ctx, const struct draft_top_args *a) {
    struct draft_top_args args = *a;
    uint64_t ids = 0;
    for (uint32_t p = 0; p < a->parts_count; p++) ids += a->parts[p].count;
    cpu_for(ctx, a->rows * ids, a->rows, top_row, &args);
}
