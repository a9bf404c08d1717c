/* plans: every operation's launch plan (launch.h says what one is). Pure, any thread. */
#pragma once
#include "kernels/ops.h" // names of the arguments

struct cuda_arch;
struct cuda_work;
struct launch_list;

#define PLANS_DECLARE(op)                                                                          \
    void op##_plan(const struct op##_args *a, const struct cuda_arch *arch,                        \
                   const struct cuda_work *w, struct launch_list *ret);
#define PLANS_ALL(X)                                                                               \
    X(embed)                                                                                       \
    X(rmsnorm)                                                                                     \
    X(linear)                                                                                      \
    X(swiglu)                                                                                      \
    X(rope)                                                                                        \
    X(kv_append)                                                                                   \
    X(attn)                                                                                        \
    X(conv)                                                                                        \
    X(conv_store)                                                                                  \
    X(delta_gates)                                                                                 \
    X(delta_norm)                                                                                  \
    X(delta_scan)                                                                                  \
    X(gated_norm)                                                                                  \
    X(delta_mix)                                                                                   \
    X(delta_commit)                                                                                \
    X(draw)                                                                                        \
    X(router)                                                                                      \
    X(experts)                                                                                     \
    X(expert_sum)
// Those of drafters, which have no twins: they owe no other operation their bits, or have one answer (kernels/draft/draft.h).
#define PLANS_DRAFT(X)                                                                             \
    X(draft_attn)                                                                                  \
    X(draft_keep)                                                                                  \
    X(draft_rotate)                                                                                \
    X(draft_conv)                                                                                  \
    X(draft_gather)                                                                                \
    X(draft_scale)                                                                                 \
    X(draft_top)                                                                                   \
    X(q4_pack)                                                                                     \
    X(q4_linear)
PLANS_ALL(PLANS_DECLARE)
PLANS_DRAFT(PLANS_DECLARE)
