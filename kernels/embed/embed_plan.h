/* embed_plan: the launch of embed, and its kernel's argument. Rows are read where they stand, on the card or in pinned host
 * memory. */
#pragma once
#include "kernels/embed/embed.h"

struct cuda_arch;
struct cuda_work;
struct launch_list;

struct embed_params {
    devptr table, ids, x;
    uint32_t cols;
    uint32_t dtype; // enum dtype
};

enum { EMBED_THREADS = 256 };

void embed_plan(const struct embed_args *a, const struct cuda_arch *arch, const struct cuda_work *w,
                struct launch_list *ret);
