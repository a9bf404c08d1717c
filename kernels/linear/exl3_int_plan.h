/* exl3_int_plan: the launches of a call's MUL1 parts; part of linear_plan. Pure, any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct cuda_arch;
struct cuda_work;
struct launch_list;
struct linear_args;

// Whether the launches of the MUL1 parts make the call's rows too (linear_from).
bool exl3_int_makes(const struct linear_args *a);
// Whether they multiply the call's plain parts too.
bool exl3_int_takes_plain(const struct linear_args *a);
/* Adds them, and what they need of the work memory behind what ret already needs; nothing without such a part. What makes the rows goes
 * before launch rows_at of ret. a->from: exl3_int_makes, or there is none. */
void exl3_int_plan(const struct linear_args *a, const struct cuda_arch *arch,
                   const struct cuda_work *w, uint32_t rows_at, struct launch_list *ret);
