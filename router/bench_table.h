/* bench_table: receipts for people. Pure but for the stream that it prints to. */
#pragma once
#include <stdio.h>

struct bench_receipt;

// What was asked of which server, the cells, what was compared, and each cell that is not equal by name.
void bench_table_print(const struct bench_receipt *r, FILE *out);
