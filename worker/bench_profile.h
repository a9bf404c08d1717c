/* bench_profile: bench engine --profile: where a GPU's time goes, for rounds of many shapes, beside what the card's memory allows. */
#pragma once

struct engine;
struct err;

enum { BENCH_PROFILE_STREAMS = 64 };

// Prints its tables to stdout. As engine_profile and engine_step.
int bench_profile(struct engine *eng, struct err *e);
