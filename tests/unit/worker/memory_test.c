/* The arena: what lies over what, what it saves, and that nothing reads what it should not. */
#include "common/err.h"
#include "common/num.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"
#include "worker/engine/engine_impl.h"

#include <string.h>

#define EXPERTS                                                                                    \
    "--moe mixed --experts 11 --top-k 3 --widths 4,plain,2.5 --codebooks mul1 --hidden 128 "       \
    "--expert-width 128 --shared-width 128 --seed 4"

static struct engine *open_with(const char *args, bool disjoint, bool spoil) {
    struct engine_config c = {.model_dir = tiny_model(args),
                              .backend = "cpu",
                              .threads = 1,
                              .context_max = 512,
                              .streams_max = 4,
                              .chunk_tokens = 40,
                              .scratch_disjoint = disjoint,
                              .spoil_dead = spoil};
    return drive_open(&c);
}

static uint64_t region(struct engine *eng, const char *name) {
    const struct engine_info *info = engine_info(eng);
    for (uint32_t i = 0; i < info->regions_count; i++)
        if (!strcmp(info->regions[i].name, name)) return info->regions[i].bytes;
    return 0;
}

// Bytes of a mixer's or the MLP's rows, as the shapes say.
struct parts {
    uint64_t attn, delta, mlp, longest, sum;
};

static uint64_t taken(const uint64_t *widths, uint64_t rows) {
    uint64_t sum = 0;
    for (; *widths; widths++) sum += align_up_u64(rows * *widths * sizeof(float), CARVE_ALIGN);
    return sum;
}

static struct parts parts_of(const struct model *m) {
    uint64_t nv = m->cfg->linear_value_heads, c = m->channels, t = m->lim.rows_max;
    uint64_t mlp = m->cfg->moe ? m->cfg->shared_expert_width : m->cfg->intermediate;
    struct parts p = {
        .attn = taken((uint64_t[]){m->q_width * 2, m->kv_width, m->kv_width, m->q_width, 0}, t),
        .delta = taken((uint64_t[]){c, c, m->value_width, m->value_width, nv, nv, 2 * nv, 0}, t),
        .mlp = taken((uint64_t[]){mlp, mlp, 0}, t)};
    p.longest = max_u64(max_u64(p.attn, p.delta), p.mlp);
    p.sum = p.attn + p.delta + p.mlp;
    return p;
}

// The region is as large as the largest of the three, which begin at one place; with experts, theirs begin behind it.
TEST(mixers_and_mlp_lie_over_one_another_and_experts_behind_them) {
    const char *models[] = {"", EXPERTS};
    for (int i = 0; i < 2; i++) {
        struct engine *eng = open_with(models[i], false, false);
        const struct model *m = &eng->model;
        CHECK_EQ_U64(m->attn.qg, m->shared);
        CHECK_EQ_U64(m->delta.m, m->shared);
        CHECK_EQ_U64(m->mlp.gate, m->shared);
        CHECK_EQ_U64(m->shared_bytes, parts_of(m).longest);
        if (m->cfg->moe) CHECK_EQ_U64(m->moe.first, m->shared + m->shared_bytes);
        engine_free(eng);
    }
}

TEST(disjoint_scratch_has_a_place_for_each_and_costs_their_sum) {
    struct engine *shared = open_with("", false, false), *apart = open_with("", true, false);
    const struct model *m = &apart->model;
    struct parts p = parts_of(m);
    CHECK_EQ_U64(m->shared_bytes, p.sum);
    CHECK(m->delta.m >= m->attn.o && m->mlp.gate >= m->delta.gates);
    CHECK_EQ_U64(region(apart, "scratch") - region(shared, "scratch"), p.sum - p.longest);
    engine_free(shared);
    engine_free(apart);
}

static void reply_of(const char *args, bool disjoint, bool spoil, struct reply ret[3]) {
    static uint32_t ids[3][150];
    struct engine *eng = open_with(args, disjoint, spoil);
    struct drive d = {.eng = eng, .replies = ret, .replies_count = 3};
    memset(ret, 0, 3 * sizeof *ret);
    for (uint32_t i = 0; i < 3; i++) { // a long prompt, a short one, a decoded one beside them
        struct engine_request r =
            drive_request(ids[i], i ? 3 + i : 150, i + 1, engine_info(eng)->vocab_size, 20 + i);
        r.tag = i;
        drive_submit(&d, &r);
    }
    drive_all(&d);
    engine_free(eng);
}

// Whatever a mixer or an MLP leaves behind, and memory that was never written, is NaN here: one read of it shows.
TEST(dead_rows_and_fresh_memory_are_never_read_dense_and_moe) {
    const char *models[] = {"", EXPERTS, "--real-heads --hidden 128 --layers 4 --vocab 300"};
    static struct reply plain[3], spoiled[3], apart[3];
    for (int i = 0; i < 3; i++) {
        reply_of(models[i], false, false, plain);
        reply_of(models[i], false, true, spoiled);
        reply_of(models[i], true, true, apart);
        for (int k = 0; k < 3; k++) {
            check_same_reply(&plain[k], &spoiled[k]);
            check_same_reply(&plain[k], &apart[k]);
        }
    }
}
