/* mtp: what it has absorbed decides what it proposes, however it was told: chunk by chunk or row by row, alone or beside
 * others, with chains and wound-back windows in between, or from a saved state. And what is no such head is refused by name. */
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "kernels/sample/sample.h"
#include "tests/lib/draft_bed.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {"--mtp", "--mtp --moe mixed --experts 7 --top-k 2 --untied",
                                    TINY_EXL3 " --mtp"};
enum {
    KINDS = sizeof kinds / sizeof *kinds,
    ROWS =
        KV_PAGE_TOKENS * 2, // a state of whole pages has nothing in it that a chain may have left
    IDS = ROWS + 16,
    WANT = 5,
};

static void make_ids(const struct draft_bed *b, uint32_t salt, uint32_t ids[IDS]) {
    for (uint32_t i = 0; i < IDS; i++)
        ids[i] = (uint32_t)(mix_u64((uint64_t)salt << 32 | i) % b->vocab);
}

static void open_bed(struct draft_bed *b, uint32_t kind) {
    draft_bed_open(
        b, &(struct draft_bed_config){
               .dir = tiny_model(kinds[kind]), .slots = 4, .context = IDS + 8, .open = bed_mtp});
}

static void feed(struct draft_bed *b, uint32_t slot, const uint32_t *ids, uint32_t pos,
                 uint32_t count, uint32_t keep, uint32_t known) {
    draft_bed_round(
        b,
        &(struct bed_feed){
            .slot = slot, .pos = pos, .count = count, .keep = keep, .ids = ids, .known = known},
        1);
}

static void tell_in_chunks(struct draft_bed *b, uint32_t slot, const uint32_t *ids) {
    draft_bed_fill(b, slot, ids, 0, ROWS, IDS, 13, NULL);
}

// Chunks of as many rows as fit; with the row that waited there is one too many for a forward.
static void tell_late(struct draft_bed *b, uint32_t slot, const uint32_t *ids) {
    for (uint32_t pos = 0; pos < ROWS; pos += 64) feed(b, slot, ids, pos, 64, 64, pos + 64);
}

static void tell_row_by_row(struct draft_bed *b, uint32_t slot, const uint32_t *ids) {
    for (uint32_t pos = 0; pos < ROWS; pos++) feed(b, slot, ids, pos, 1, 1, pos + 1 + pos % 2);
}

// As rounds of drafts go: a window with wrong ids behind those kept, a chain from there.
static void tell_in_windows(struct draft_bed *b, uint32_t slot, const uint32_t *ids) {
    uint32_t wrong[IDS], drafts[DRAFT_IDS_MAX];
    for (uint32_t pos = 0, keep; pos < ROWS; pos += keep) {
        keep = min_u32(1 + pos % 4, ROWS - pos);
        memcpy(wrong, ids, sizeof wrong);
        for (uint32_t i = pos + keep; i < IDS; i++) wrong[i] = (ids[i] + 1) % b->vocab;
        wrong[pos + keep] = ids[pos + keep]; // drawn behind the last row kept
        feed(b, slot, wrong, pos, keep + 3, keep, pos + keep + pos / 2 % 2);
        draft_bed_propose(b, slot, ids, pos + keep, 1 + pos % WANT, drafts);
    }
}

// A stream in every round beside it, of other lengths.
static void tell_in_company(struct draft_bed *b, uint32_t slot, const uint32_t *ids) {
    uint32_t other[IDS], third[IDS], at = 0;
    make_ids(b, 77, other);
    make_ids(b, 78, third);
    for (uint32_t pos = 0, n; pos < ROWS; pos += n, at++) {
        n = min_u32(17, ROWS - pos);
        struct bed_feed f[3] = {
            {.slot = (slot + 1) % 4, .pos = at, .count = 1, .keep = 1, .ids = other, .known = IDS},
            {.slot = slot, .pos = pos, .count = n, .keep = n, .ids = ids, .known = IDS},
            {.slot = (slot + 2) % 4,
             .pos = at * 2,
             .count = 2,
             .keep = 2,
             .ids = third,
             .known = 0},
        };
        f[2].known = f[2].pos + 2;
        draft_bed_round(b, f, 3);
    }
}

static void *state_of(struct draft_bed *b, uint32_t slot, uint32_t rows, uint64_t *ret_bytes) {
    *ret_bytes = b->drafter.state_bytes(b->drafter.self, rows);
    void *p = mem_alloc(*ret_bytes);
    b->drafter.state_read(b->drafter.self, slot, rows, p);
    return p;
}

TEST(what_was_absorbed_is_the_same_however_it_was_told) {
    typedef void tell_fn(struct draft_bed *, uint32_t, const uint32_t *);
    static tell_fn *const ways[] = {tell_in_chunks, tell_late, tell_row_by_row, tell_in_windows,
                                    tell_in_company};
    for (uint32_t k = 0; k < KINDS; k++) {
        struct draft_bed b;
        uint32_t ids[IDS], want[WANT], got[WANT];
        uint64_t bytes = 0;
        void *state = NULL;
        open_bed(&b, k);
        make_ids(&b, 5, ids);
        for (uint32_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            uint32_t slot = w % 4;
            ways[w](&b, slot, ids);
            CHECK_EQ(draft_bed_propose(&b, slot, ids, ROWS, WANT, w ? got : want), WANT);
            void *p = state_of(&b, slot, ROWS, &bytes);
            if (w) CHECK_MEM(got, want, sizeof want);
            if (w) CHECK_MEM(p, state, bytes);
            if (w) free(p);
            if (!w) state = p;
        }
        free(state);
        draft_bed_close(&b);
    }
}

/* The last row of the head was run with the token that followed then. */
TEST(a_state_goes_on_in_another_slot_with_whatever_token_follows) {
    for (uint32_t k = 0; k < KINDS; k++) {
        struct draft_bed b;
        uint32_t ids[IDS], other[IDS], want[2][WANT], got[WANT];
        uint64_t bytes;
        const uint32_t rows = ROWS - 20; // within a page
        open_bed(&b, k);
        make_ids(&b, 5, ids);
        memcpy(other, ids, sizeof other);
        other[rows] = (ids[rows] + 1) % b.vocab;
        for (int i = 0; i < 2; i++) {
            draft_bed_fill(&b, 0, i ? other : ids, 0, rows, IDS, 16, NULL);
            draft_bed_propose(&b, 0, i ? other : ids, rows, WANT, want[i]);
        }
        CHECK(memcmp(want[0], want[1], sizeof want[0]) != 0); // or the test would show nothing
        draft_bed_fill(&b, 0, ids, 0, rows, IDS, 16, NULL);
        void *p = state_of(&b, 0, rows, &bytes);
        for (int i = 0; i < 2; i++) {
            tell_in_chunks(&b, 3, other); // something else was there
            b.drafter.state_write(b.drafter.self, 3, rows, p);
            draft_bed_propose(&b, 3, i ? other : ids, rows, WANT, got);
            CHECK_MEM(got, want[i], sizeof got);
        }
        free(p);
        draft_bed_close(&b);
    }
}

static struct draft_ask ask_of(uint32_t slot, const uint32_t *ids, uint32_t pos, uint32_t want,
                               const struct sample_params *p) {
    return (struct draft_ask){
        .slot = slot, .anchor = ids[pos], .pos = pos, .want = want, .sampling = p};
}

/* All chains of a round share its forwards; the longest goes on alone. */
TEST(chains_are_the_same_alone_and_together) {
    const struct sample_params ps[] = {
        {.top_p = 1, .repetition = 1},
        {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 9},
        {.temperature = 0.7, .top_k = 20, .top_p = 0.9, .repetition = 1.1, .seed = 10},
        {.top_p = 1, .repetition = 1},
    };
    static const uint32_t rows[] = {1, 30, 64, 100}, wants[] = {3, 7, 1, 5};
    for (uint32_t k = 0; k < KINDS; k++) {
        struct draft_bed b;
        uint32_t ids[4][IDS];
        struct draft_ask alone[4], all[4];
        open_bed(&b, k);
        for (uint32_t i = 0; i < 4; i++) {
            make_ids(&b, i, ids[i]);
            draft_bed_fill(&b, i, ids[i], 0, rows[i], rows[i] + i % 2, 64, NULL);
            alone[i] = ask_of(i, ids[i], rows[i], 7, &ps[i]);
            b.drafter.propose(b.drafter.self, &alone[i], 1);
            CHECK_EQ(alone[i].ret_count, 7);
        }
        for (uint32_t i = 0; i < 4; i++)
            all[i] = ask_of(3 - i, ids[3 - i], rows[3 - i], wants[i], &ps[3 - i]);
        b.drafter.propose(b.drafter.self, all, 4);
        for (uint32_t i = 0; i < 4; i++) {
            CHECK_EQ(all[i].ret_count, wants[i]);
            CHECK_MEM(all[i].ret_ids, alone[3 - i].ret_ids, wants[i] * sizeof(uint32_t));
        }
        draft_bed_close(&b);
    }
}

TEST(ids_outside_the_spans_are_never_proposed) {
    static const struct engine_range spans[] = {{0, 20}, {250, 6}};
    struct draft_bed_config c = {
        .dir = tiny_model(kinds[0]), .slots = 1, .context = IDS, .open = bed_mtp};
    uint32_t ids[IDS], free_ids[DRAFT_IDS_MAX], outside = 0;
    for (int pass = 0; pass < 2; pass++) { // without spans, with them
        struct draft_bed b;
        c.spans = spans;
        c.spans_count = pass ? 2 : 0;
        draft_bed_open(&b, &c);
        make_ids(&b, 1, ids);
        for (uint32_t pos = 1; pos < 40; pos++) {
            draft_bed_fill(&b, 0, ids, pos - 1, pos, IDS, 1, NULL);
            uint32_t n = draft_bed_propose(&b, 0, ids, pos, 3, free_ids);
            for (uint32_t i = 0; i < n; i++)
                outside += free_ids[i] >= 20 && (free_ids[i] < 250 || free_ids[i] >= 256);
        }
        if (!pass) CHECK(outside > 50);
        if (pass) CHECK_EQ(outside, 0);
        outside = 0;
        draft_bed_close(&b);
    }
}

/* Rows that it was not told of leave a hole in its cache: better no drafts than those of another stream's rows. */
TEST(a_slot_whose_rows_came_without_a_state_drafts_when_it_begins_anew) {
    struct draft_bed b;
    uint32_t ids[IDS], want[WANT], got[WANT];
    open_bed(&b, 0);
    make_ids(&b, 5, ids);
    draft_bed_fill(&b, 0, ids, 0, 40, IDS, 16, NULL);
    CHECK_EQ(draft_bed_propose(&b, 0, ids, 40, WANT, want), WANT);
    b.drafter.state_write(b.drafter.self, 0, 40, NULL);
    CHECK_EQ(draft_bed_propose(&b, 0, ids, 40, WANT, got), 0);
    feed(&b, 0, ids, 40, 3, 3, 44);
    CHECK_EQ(draft_bed_propose(&b, 0, ids, 43, WANT, got), 0);
    draft_bed_fill(&b, 0, ids, 0, 40, IDS, 16, NULL);
    CHECK_EQ(draft_bed_propose(&b, 0, ids, 40, WANT, got), WANT);
    CHECK_MEM(got, want, sizeof got);
    draft_bed_close(&b);
}

static uint64_t region(const struct draft_bed *b, const char *name) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < b->carve.regions_count; i++)
        if (!strcmp(b->carve.regions[i].name, name)) sum += b->carve.regions[i].bytes;
    return sum;
}

/* One layer's keys and values under the target's page numbers, in its cache's type; the bed checks that what was measured
 * before anything was loaded is what is used. */
TEST(its_cache_is_one_layer_more_of_the_target_s) {
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_E4M3};
    for (int i = 0; i < 3; i++) {
        struct draft_bed b;
        uint32_t ids[IDS], got[3];
        draft_bed_open(&b, &(struct draft_bed_config){.dir = tiny_model(kinds[0]),
                                                      .slots = 3,
                                                      .context = IDS,
                                                      .kv_dtype = types[i],
                                                      .open = bed_mtp});
        CHECK_EQ_U64(region(&b, "mtp kv blocks"),
                     b.model.lim.pages * 2ull * 64 * 32 * dtype_bytes(types[i]));
        CHECK_EQ_U64(region(&b, "mtp kv blocks") * b.model.full_layers, region(&b, "kv blocks"));
        make_ids(&b, 2, ids);
        draft_bed_fill(&b, 1, ids, 0, 70, IDS, 20, NULL);
        CHECK_EQ(draft_bed_propose(&b, 1, ids, 70, 3, got), 3);
        draft_bed_close(&b);
    }
}

static void patch(const char *path, const char *from, const char *to) {
    size_t n = strlen(from), len;
    CHECK_EQ(strlen(to), n);
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL);
    char *p = mem_alloc(1 << 16);
    len = fread(p, 1, 1 << 16, f); // the header lies within
    char *at = memmem(p, len, from, n);
    if (!at) test_fail(__FILE__, __LINE__, "%s: nowhere in %s", from, path);
    CHECK_EQ(fseek(f, at - p, SEEK_SET), 0);
    CHECK_EQ(fwrite(to, 1, n, f), n);
    fclose(f);
    free(p);
}

#define DENSE "--mtp --vision"
#define EXPERTS "--mtp --moe packed"
#define EXL3 TINY_EXL3 " --mtp"

TEST(what_is_no_mtp_head_of_ours_is_refused_by_name) {
    static const struct {
        const char *args, *file, *from, *to;
        int st;
        const char *parts[2];
    } cases[] = {
        {"", NULL, NULL, NULL, ST_UNSUPPORTED, {"wanted an MTP head", "found none"}},
        {DENSE,
         "config.json",
         "\"mtp_num_hidden_layers\": 1",
         "\"mtp_num_hidden_layers\": 2",
         ST_UNSUPPORTED,
         {"mtp_num_hidden_layers: wanted 1, found 2"}},
        {DENSE,
         "config.json",
         "\"mtp_use_dedicated_embeddings\": false",
         "\"mtp_use_dedicated_embeddings\":  true",
         ST_UNSUPPORTED,
         {"mtp_use_dedicated_embeddings: wanted false, found true"}},
        {DENSE,
         NULL,
         "mtp.fc.weight",
         "mtp.fx.weight",
         ST_CORRUPT,
         {"tensor 'mtp.fc.weight': wanted, found in no file"}},
        {DENSE,
         NULL,
         "\"mtp.fc.weight\":{\"dtype\":\"BF16\",\"shape\":[64,128]",
         "\"mtp.fc.weight\":{\"dtype\":\"BF16\",\"shape\":[128,64]",
         ST_CORRUPT,
         {"model.safetensors': tensor 'mtp.fc.weight'", "wanted shape [64, 128], found [128, 64]"}},
        {DENSE,
         NULL,
         "\"mtp.norm.weight\":{\"dtype\":\"BF16\",\"shape\":[64]",
         "\"mtp.norm.weight\":{\"dtype\":\"I16\" ,\"shape\":[64]",
         ST_UNSUPPORTED,
         {"model.safetensors': tensor 'mtp.norm.weight'", "wanted BF16, F16 or F32, found I16"}},
        {DENSE,
         NULL,
         "mtp.pre_fc_norm_hidden.weight",
         "mtp.pre_fc_norm_hiddem.weight",
         ST_CORRUPT,
         {"tensor 'mtp.pre_fc_norm_hidden.weight': wanted, found in no file"}},
        {DENSE,
         NULL,
         "mtp.layers.0.self_attn.k_norm.weight",
         "mtp.layers.0.self_attn.k_nose.weight",
         ST_CORRUPT,
         {"tensor 'mtp.layers.0.self_attn.k_norm.weight': wanted"}},
        {DENSE,
         NULL,
         "model.visual.merger.norm.bias",
         "mtp.layers.1.layernorm.weight",
         ST_UNSUPPORTED,
         {"model.safetensors': tensor 'mtp.layers.1.layernorm.weight'", "found this too"}},
        {DENSE,
         NULL,
         "model.visual.merger.norm.bias",
         "mtp.shared_head.emb_tok.weigh",
         ST_UNSUPPORTED,
         {"tensor 'mtp.shared_head.emb_tok.weigh'"}},
        {EXPERTS,
         NULL,
         "mtp.layers.0.mlp.experts.3.up_proj.weight",
         "mtp.layers.0.mlp.experts.9.up_proj.weight",
         ST_CORRUPT,
         {"tensor 'mtp.layers.0.mlp.experts.3.up_proj.weight': wanted"}},
        {EXPERTS,
         NULL,
         "mtp.layers.0.mlp.gate.weight",
         "mtp.layers.0.mlp.gaze.weight",
         ST_CORRUPT,
         {"tensor 'mtp.layers.0.mlp.gate.weight': wanted"}},
        {EXL3,
         NULL,
         "mtp.fc.suh",
         "mtp.fc.sux",
         ST_CORRUPT,
         {"tensor 'mtp.fc.trellis'", "wanted '.suh' or '.su' with it, found neither"}},
        {EXL3,
         NULL,
         "mtp.layers.0.mlp.up_proj.trellis",
         "mtp.layers.0.mlp.up_proj.treilis",
         ST_CORRUPT,
         {"tensor 'mtp.layers.0.mlp.up_proj.weight': wanted"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[400], path[450], cmd[1200];
        struct draft_bed b;
        struct err e = {0};
        snprintf(dir, sizeof dir, "%s/broken%zu", test_temp_dir(), i);
        snprintf(cmd, sizeof cmd, "cp -r '%s' '%s'", tiny_model(cases[i].args), dir);
        CHECK_EQ(system(cmd), 0);
        snprintf(path, sizeof path, "%s/%s", dir,
                 cases[i].file ? cases[i].file : "model.safetensors");
        if (cases[i].from) patch(path, cases[i].from, cases[i].to);
        int st = draft_bed_try(
            &b, &(struct draft_bed_config){.dir = dir, .slots = 1, .context = 64, .open = bed_mtp},
            &e);
        if (st != cases[i].st)
            test_fail(__FILE__, __LINE__, "case %zu: status %d, wanted %d: %s", i, st, cases[i].st,
                      e.msg);
        for (int k = 0; k < 2 && cases[i].parts[k]; k++) CHECK_HAS(e.msg, cases[i].parts[k]);
        CHECK(strchr(e.msg, '\n') == NULL);
    }
}

/* A tool that writes the config anew may lose the keys; the tensors say what is there. */
TEST(a_head_that_the_config_does_not_tell_of_is_taken) {
    char dir[400], path[450], cmd[1200];
    struct draft_bed b;
    snprintf(dir, sizeof dir, "%s/untold", test_temp_dir());
    snprintf(cmd, sizeof cmd, "cp -r '%s' '%s'", tiny_model(DENSE), dir);
    CHECK_EQ(system(cmd), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    patch(path, "\"mtp_num_hidden_layers\": 1", "\"mtp_num_hidden_lapers\": 1");
    draft_bed_open(
        &b, &(struct draft_bed_config){.dir = dir, .slots = 1, .context = 64, .open = bed_mtp});
    draft_bed_close(&b);
}
