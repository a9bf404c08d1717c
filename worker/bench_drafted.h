/* bench_drafted: bench engine, with a drafter: what a round with drafts costs, part by part. */
#pragma once
#include <stdbool.h>

struct engine;
struct err;

// Prints its table to stdout, and, with `apart`, the operations of blocks. As engine_step and engine_parts_begin.
int bench_drafted(struct engine *eng, bool apart, struct err *e);
