/* Every plan, for every architecture: names a kernel that was compiled, with the argument it takes, and fits. What is wrong
 * here fails at a launch on a GPU that CI does not have. */
#include "common/num.h"
#include "kernels/attn/attn.h"
#include "kernels/attn/kv_append.h"
#include "kernels/cuda/fatbin.h"
#include "kernels/cuda/plans.h"
#include "kernels/delta/conv.h"
#include "kernels/delta/delta_commit.h"
#include "kernels/delta/delta_gates.h"
#include "kernels/delta/delta_mix.h"
#include "kernels/delta/delta_norm.h"
#include "kernels/delta/delta_scan.h"
#include "kernels/delta/gated_norm.h"
#include "kernels/draft/draft_attn.h"
#include "kernels/draft/draft_conv.h"
#include "kernels/draft/draft_gather.h"
#include "kernels/draft/draft_keep.h"
#include "kernels/draft/draft_rotate.h"
#include "kernels/draft/draft_scale.h"
#include "kernels/draft/draft_top.h"
#include "kernels/draft/q4_linear.h"
#include "kernels/draft/q4_pack.h"
#include "kernels/embed/embed.h"
#include "kernels/linear/exl3_params.h"
#include "kernels/linear/linear.h"
#include "kernels/mlp/swiglu.h"
#include "kernels/moe/expert_sum.h"
#include "kernels/moe/experts.h"
#include "kernels/moe/router.h"
#include "kernels/norm/rmsnorm.h"
#include "kernels/rope/rope.h"
#include "kernels/sample/draw.h"
#include "tests/lib/plan_check.h"
#include "tests/lib/test.h"

#include <string.h>

static const uint32_t rows[] = {1, 2, 3, 8, 16, 17, 64, 128, 256, 2048, 8192};
enum { ROWS = sizeof rows / sizeof *rows };

static const struct cuda_work no_work;

static void note(const char *op, uint32_t compiled) {
    test_note("%s: %u launches held against compiled kernels", op, compiled);
}

// Each makes the operation's arguments as a model of the published sizes has them, for `rows` rows and one of VARIANTS shapes,
// and plans them.
enum { VARIANTS = 4 };
typedef void plan_fn(uint32_t rows, uint32_t variant, const struct cuda_arch *arch,
                     struct launch_list *l);

static const uint32_t hidden[VARIANTS] = {64, 1000, 2048, 5120};

static void plan_embed(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                       struct launch_list *l) {
    struct embed_args a = {.table = {.dtype = (enum dtype)(v % 3), .rows = 100, .cols = hidden[v]},
                           .rows = rows_count};
    embed_plan(&a, arch, &no_work, l);
}

static void plan_rmsnorm(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                         struct launch_list *l) {
    rmsnorm_plan(&(struct rmsnorm_args){.rows = rows_count, .dim = hidden[v]}, arch, &no_work, l);
}

static void plan_linear(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                        struct launch_list *l) {
    static const uint32_t outputs[VARIANTS] = {1, 248320, 34816, 17408};
    struct linear_args a = {.rows = rows_count, .parts_count = v + 1};
    for (uint32_t i = 0; i <= v; i++) {
        a.parts[i].w = (struct weight){
            .dtype = (enum dtype)(i % 3), .rows = outputs[i], .cols = hidden[v] / 128 * 128 + 128};
        if (v >= 2 && i != 0)
            a.parts[i].w.exl3 = (struct exl3){.half_bits = 6 + i, .codebook = EXL3_MUL1};
    }
    linear_plan(&a, arch, &no_work, l);
}

static void plan_chains(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                        struct launch_list *l) {
    struct linear_args a = {.rows = rows_count, .parts_count = 2};
    for (uint32_t i = 0; i < 2; i++) {
        a.parts[i].w = (struct weight){.dtype = DTYPE_BF16, .rows = 1024 << v, .cols = 512 << v};
        if (i) a.parts[i].w.exl3 = (struct exl3){.half_bits = 7, .codebook = EXL3_MCG};
    }
    linear_plan(&a, arch, &no_work, l);
}

// Prompts of the largest parts, all of one width, which must not take more launches than there are; and the head.
static void plan_alike(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                       struct launch_list *l) {
    struct linear_args a = {.rows = rows_count, .parts_count = v + 1};
    for (uint32_t i = 0; i <= v; i++)
        a.parts[i].w = (struct weight){.rows = v ? 17408 : 248320,
                                       .cols = 5120,
                                       .exl3 = {.half_bits = 8, .codebook = EXL3_MUL1}};
    linear_plan(&a, arch, &no_work, l);
}

static void plan_swiglu(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                        struct launch_list *l) {
    swiglu_plan(&(struct swiglu_args){.rows = rows_count, .dim = hidden[v] * 3}, arch, &no_work, l);
}

static void plan_rope(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                      struct launch_list *l) {
    rope_plan(&(struct rope_args){.rows = rows_count, .pairs = 4u << v}, arch, &no_work, l);
}

static struct kv_view view_of(uint32_t v) {
    static const uint32_t dims[VARIANTS] = {16, 128, 256, 256};
    static const enum dtype types[VARIANTS] = {DTYPE_F32, DTYPE_BF16, DTYPE_E4M3, DTYPE_BF16};
    return (struct kv_view){
        .heads = v + 1, .dim = dims[v], .dtype = types[v], .pages_per_slot = 2048};
}

static void plan_kv_append(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                           struct launch_list *l) {
    struct kv_append_args a = {
        .rows = {.count = rows_count}, .kv = view_of(v), .heads = 6 * (v + 1), .pairs = 8};
    kv_append_plan(&a, arch, &no_work, l);
}

static void plan_attn(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                      struct launch_list *l) {
    struct attn_args a = {.rows = {.count = rows_count, .runs_count = v % 2 + 1},
                          .kv = view_of(v),
                          .heads = 6 * (v + 1)};
    attn_plan(&a, arch, &no_work, l);
}

static void plan_conv(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                      struct launch_list *l) {
    struct conv_args a = {.rows = {.count = rows_count, .runs_count = 1}, .channels = hidden[v]};
    conv_plan(&a, arch, &no_work, l);
}

static void plan_conv_store(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                            struct launch_list *l) {
    struct conv_store_args a = {.runs_count = rows_count, .channels = hidden[v]};
    conv_store_plan(&a, arch, &no_work, l);
}

static void plan_delta_gates(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                             struct launch_list *l) {
    delta_gates_plan(&(struct delta_gates_args){.rows = rows_count, .heads = 16 * (v + 1)}, arch,
                     &no_work, l);
}

static void plan_delta_norm(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                            struct launch_list *l) {
    delta_norm_plan(
        &(struct delta_norm_args){.rows = rows_count, .key_heads = 4 * v + 1, .key_dim = 128}, arch,
        &no_work, l);
}

static struct delta_scan_args scan_of(uint32_t runs, uint32_t v) {
    static const uint32_t dims[VARIANTS] = {16, 64, 128, 256};
    return (struct delta_scan_args){.runs_count = runs,
                                    .value_heads = 16 * (v + 1),
                                    .key_heads = 16,
                                    .key_dim = dims[v],
                                    .value_dim = dims[v]};
}

static void plan_delta_scan(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                            struct launch_list *l) {
    struct delta_scan_args a = scan_of(rows_count, v);
    delta_scan_plan(&a, arch, &no_work, l);
}

static void plan_delta_commit(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                              struct launch_list *l) {
    struct delta_commit_args a = {
        .scan = scan_of(rows_count % 64 + 1, v),
        .conv = {.runs_count = rows_count % 64 + 1, .channels = hidden[v]},
        .layers = 16 * (v + 1)};
    delta_commit_plan(&a, arch, &no_work, l);
    CHECK_EQ(l->count, 2);
}

// Few rows go through one launch, where there is a kernel for their sizes.
static void plan_delta_mix(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                           struct launch_list *l) {
    struct delta_scan_args s = scan_of(1, v);
    struct delta_mix_args a = {.rows = {.count = rows_count, .runs_count = 1},
                               .rec_m = v % 2,
                               .key_heads = s.key_heads,
                               .value_heads = s.value_heads,
                               .key_dim = s.key_dim,
                               .value_dim = s.value_dim};
    delta_mix_plan(&a, arch, &no_work, l);
    CHECK_EQ(l->count, s.key_dim == 128 && rows_count <= 8 ? 1 : 6 + v % 2);
    CHECK_EQ(l->counters, l->count == 1 ? s.key_heads : 0);
}

static void plan_gated_norm(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                            struct launch_list *l) {
    gated_norm_plan(&(struct gated_norm_args){.rows = rows_count, .heads = 16 * v + 1, .dim = 128},
                    arch, &no_work, l);
}

static void plan_draw(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                      struct launch_list *l) {
    draw_plan(&(struct draw_args){.rows_count = rows_count, .vocab = 1000u << v}, arch, &no_work,
              l);
}

static const uint32_t experts_count[VARIANTS] = {5, 128, 256, 512};

static void plan_router(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                        struct launch_list *l) {
    struct router_args a = {.rows = rows_count, .count = experts_count[v], .per_token = v + 2};
    router_plan(&a, arch, &no_work, l);
}

static void plan_experts(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                         struct launch_list *l) {
    static struct expert table[512];
    for (uint32_t e = 0; e < experts_count[v]; e++)
        table[e].gate.exl3.half_bits = v >= 2 && e ? 8 : 0;
    struct experts_args a = {.table = table,
                             .rows = rows_count,
                             .dim = hidden[v],
                             .width = v ? 512 : 24,
                             .count = experts_count[v],
                             .per_token = v + 2};
    experts_plan(&a, arch, &no_work, l);
    CHECK(l->scratch_bytes > 0);
}

static void plan_expert_sum(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                            struct launch_list *l) {
    expert_sum_plan(&(struct expert_sum_args){.rows = rows_count, .dim = hidden[v]}, arch, &no_work,
                    l);
}

static const struct draft_context contexts[VARIANTS] = {
    {.ring = 5, .heads = 1, .dim = 8},
    {.ring = 4095, .heads = 2, .dim = 64, .dtype = DTYPE_BF16},
    {.pages_per_slot = 3, .heads = 8, .dim = 128, .dtype = DTYPE_BF16},
    {.pages_per_slot = 4096, .heads = 4, .dim = DRAFT_HEAD_DIM_MAX}};

static void plan_draft_attn(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                            struct launch_list *l) {
    struct draft_attn_args a = {.context = contexts[v],
                                .blocks_count = ceil_div_u32(rows_count, 8),
                                .rows = rows_count,
                                .heads = contexts[v].heads * 4,
                                .window = v * 1000};
    draft_attn_plan(&a, arch, &no_work, l);
    CHECK(l->scratch_bytes > 0);
}

static void plan_draft_keep(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                            struct launch_list *l) {
    draft_keep_plan(
        &(struct draft_keep_args){.context = contexts[v], .runs_count = 1, .rows = rows_count},
        arch, &no_work, l);
}

static void plan_draft_rotate(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                              struct launch_list *l) {
    draft_rotate_plan(
        &(struct draft_rotate_args){.rows = rows_count, .heads = v + 1, .dim = contexts[v].dim},
        arch, &no_work, l);
}

static void plan_draft_conv(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                            struct launch_list *l) {
    draft_conv_plan(
        &(struct draft_conv_args){
            .blocks_count = 1, .rows = rows_count, .dim = hidden[v], .taps = 2, .group = 1},
        arch, &no_work, l);
}

static void plan_draft_gather(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                              struct launch_list *l) {
    draft_gather_plan(
        &(struct draft_gather_args){.count = v + 1, .dim = hidden[v], .rows = rows_count}, arch,
        &no_work, l);
}

static void plan_draft_scale(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                             struct launch_list *l) {
    draft_scale_plan(&(struct draft_scale_args){.count = (uint64_t)rows_count * hidden[v]}, arch,
                     &no_work, l);
}

static void plan_draft_top(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                           struct launch_list *l) {
    draft_top_plan(&(struct draft_top_args){.parts_count = v + 1, .rows = rows_count, .k = 16},
                   arch, &no_work, l);
}

static void plan_q4_pack(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                         struct launch_list *l) {
    q4_pack_plan(&(struct q4_pack_args){.to = {.rows = rows_count * 4, .cols = 64u << v}}, arch,
                 &no_work, l);
}

static void plan_q4_linear(uint32_t rows_count, uint32_t v, const struct cuda_arch *arch,
                           struct launch_list *l) {
    struct q4_linear_args a = {.rows = rows_count, .parts_count = v + 1};
    for (uint32_t i = 0; i <= v; i++)
        a.parts[i].w = (struct q4){.rows = 4u << (2 * v), .cols = 64u << v};
    q4_linear_plan(&a, arch, &no_work, l);
}

static void check_op(const char *op, plan_fn *plan) {
    uint32_t compiled = 0;
    for (const struct cuda_arch *arch = cuda_archs; arch->sm; arch++)
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t v = 0; v < VARIANTS; v++) {
                struct launch_list *l = plan_check_begin();
                plan(rows[r], v, arch, l);
                compiled += plan_check(l, arch, op);
            }
    note(op, compiled);
}

TEST(every_plan_fits_every_architecture) {
#define CHECK_OP(op) check_op(#op, plan_##op);
    PLANS_ALL(CHECK_OP)
    check_op("linear, chains", plan_chains);
    check_op("linear, alike", plan_alike);
    PLANS_DRAFT(CHECK_OP)
}

static struct launch_list attn_of(const struct cuda_arch *arch, uint32_t group, uint32_t count,
                                  uint32_t runs, enum dtype type) {
    struct attn_args a = {
        .rows = {.count = count, .runs_count = runs},
        .kv = {.heads = 2, .dim = 256, .dtype = type, .pages_per_slot = 4096},
        .heads = 2 * group,
        .scale = 1,
    };
    struct launch_list l = {0};
    attn_plan(&a, arch, &no_work, &l);
    return l;
}

// Rounds are measured with one run and with runs of one row: whatever lies between must not want more.
TEST(attention_wants_no_more_for_fewer_rows_whatever_their_runs) {
    static const uint32_t groups[] = {1, 3, 6, 8, 12, 48};
    for (const struct cuda_arch *arch = cuda_archs; arch->sm; arch++)
        for (uint32_t g = 0; g < sizeof groups / sizeof *groups; g++)
            for (uint32_t r = 0; r < ROWS; r++)
                for (uint32_t runs = 1; runs <= rows[r] && runs <= 20; runs++)
                    for (uint32_t type = DTYPE_BF16; type <= DTYPE_E4M3; type += 2) {
                        struct launch_list l =
                            attn_of(arch, groups[g], rows[r], runs, (enum dtype)type);
                        struct launch_list more =
                            attn_of(arch, groups[g], rows[r] + 1, 1, (enum dtype)type);
                        plan_check(&l, arch, "attn");
                        CHECK(l.scratch_bytes <= more.scratch_bytes);
                        CHECK(l.counters <= more.counters);
                    }
}

// The engine asks at some counts of rows: those between must not want more.
TEST(plain_linear_layers_want_no_more_for_fewer_rows) {
    static const uint32_t shapes[][2] = {{1, 16},      {96, 5120},    {1024, 2048}, {5120, 17408},
                                         {6144, 5120}, {17408, 5120}, {34816, 2560}};
    for (const struct cuda_arch *arch = cuda_archs; arch->sm; arch++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            uint64_t before = 0;
            for (uint32_t rows_count = 1; rows_count < 400; rows_count++) {
                struct linear_args a = {.rows = rows_count, .parts_count = 1};
                a.parts[0].w = (struct weight){
                    .dtype = DTYPE_BF16, .rows = shapes[s][0], .cols = shapes[s][1]};
                struct launch_list *l = plan_check_begin();
                linear_plan(&a, arch, &no_work, l);
                plan_check(l, arch, "linear");
                CHECK(l->scratch_bytes >= before);
                before = l->scratch_bytes;
            }
        }
}

static struct launch_list exl3_of(const struct cuda_arch *arch, const uint32_t *shape,
                                  enum exl3_codebook codebook, uint32_t rows_count) {
    struct linear_args a = {.rows = rows_count, .parts_count = 3};
    struct launch_list l = {0};
    for (uint32_t i = 0; i < 3; i++)
        a.parts[i].w = (struct weight){.rows = i ? 128 * i : shape[0],
                                       .cols = shape[1],
                                       .exl3 = {.half_bits = 8, .codebook = codebook}};
    linear_plan(&a, arch, &no_work, &l);
    return l;
}

// The same of EXL3 ones, which it asks at powers of two from 64 rows on.
TEST(exl3_layers_want_no_more_than_at_the_counts_that_are_asked) {
    static const uint32_t shapes[][2] = {{128, 128},   {512, 512},    {8448, 128},  {5120, 17408},
                                         {5120, 6144}, {17408, 5120}, {248320, 128}};
    for (const struct cuda_arch *arch = cuda_archs; arch->sm; arch++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (uint32_t c = EXL3_3INST; c <= EXL3_MUL1; c++)
                for (uint32_t asked = 128; asked <= 2048; asked *= 2) {
                    struct launch_list most =
                        exl3_of(arch, shapes[s], (enum exl3_codebook)c, asked);
                    plan_check(&most, arch, "linear, EXL3");
                    for (uint32_t n = asked / 2 + 1; n < asked; n += asked / 64) {
                        struct launch_list l = exl3_of(arch, shapes[s], (enum exl3_codebook)c, n);
                        CHECK(l.scratch_bytes <= most.scratch_bytes);
                        CHECK(l.counters <= most.counters);
                    }
                }
}

static uint32_t check_sums_aligned(uint32_t cols, uint32_t plain, uint32_t rows_count) {
    struct linear_args a = {.rows = rows_count, .parts_count = 2};
    struct launch_list l = {0};
    uint32_t seen = 0;
    a.parts[0].w = (struct weight){.dtype = DTYPE_BF16, .rows = plain, .cols = cols};
    a.parts[1].w =
        (struct weight){.rows = 1024, .cols = cols, .exl3 = {.half_bits = 8, .codebook = EXL3_MCG}};
    linear_plan(&a, &cuda_archs[3], &no_work, &l);
    for (uint32_t i = 0; i < l.count; i++) {
        const struct exl3_params *p = (const void *)l.launches[i].params;
        if (strncmp(l.launches[i].kernel, "exl3_", 5) != 0) continue;
        CHECK_EQ_U64(p->rotated % 16, 0);
        CHECK_EQ_U64(p->sums % 16, 0);
        seen++;
    }
    return seen;
}

// Plain parts of any size stand before EXL3 ones in a call: the sums of these are read sixteen bytes at a time.
TEST(scratch_of_exl3_parts_is_aligned_whatever_plain_parts_stand_before) {
    static const uint32_t inputs[] = {128, 384, 1152, 5120};
    uint32_t seen = 0;
    for (size_t k = 0; k < sizeof inputs / sizeof *inputs; k++)
        for (uint32_t n = 1; n <= 100; n += 3)
            for (uint32_t r = 1; r <= 40; r++) seen += check_sums_aligned(inputs[k], n, r);
    CHECK(seen > 1000);
}

// The table is searched by halves.
TEST(the_table_of_kernels_is_in_order_and_every_kernel_is_found) {
    for (uint32_t i = 0; i < cuda_kernels_count; i++) {
        CHECK(i == 0 || strcmp(cuda_kernels[i - 1].name, cuda_kernels[i].name) < 0);
        CHECK(cuda_kernel_find(cuda_kernels[i].name) == &cuda_kernels[i]);
        CHECK(cuda_kernels[i].image < cuda_images_count);
    }
    CHECK(!cuda_kernel_find("no_such_kernel"));
    test_note("%u kernels in %u files", cuda_kernels_count, cuda_images_count);
}
