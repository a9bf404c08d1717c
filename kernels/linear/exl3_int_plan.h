/* exl3_int_plan: the launches of a call's MUL1 parts; part of linear_plan. Pure, any thread. */
#pragma once

struct cuda_arch;
struct cuda_work;
struct launch_list;
struct linear_args;

// Adds them, and what they need of the work memory behind what ret already needs; nothing without such a part.
void exl3_int_plan(const struct linear_args *a, const struct cuda_arch *arch,
                   const struct cuda_work *w, struct launch_list *ret);
