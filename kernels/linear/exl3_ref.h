/* exl3_ref: what the twins of the EXL3 parts share, and those parts alone. For tests. */
#pragma once
#include "kernels/linear/linear.h"

// A row times suh, rotated: [K].
void exl3_ref_rotate_row(const struct linear_args *a, const struct weight *w, uint32_t row,
                         float *ret);
// From a row's sums [N] to its answer in p->y. y is overwritten.
void exl3_ref_finish_row(const struct linear_part *p, uint32_t row, float *y);

// The part by integers (MUL1 alone): exl3_int.h.
void exl3_int_ref(const struct linear_args *a, const struct linear_part *p);
// The part by chains of tensor-core steps (any codebook): linear_order.h. What experts have, whatever the codebook.
void exl3_chain_ref(const struct linear_args *a, const struct linear_part *p);
