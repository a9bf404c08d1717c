/* bench_parts: what bench engine can measure of an engine, part by part (docs/bench.md), and what the parts share. Each prints a
 * table to stdout and, where one is asked for, a line of JSON a figure to a file. */
#pragma once
#include <stdint.h>
#include <stdio.h>

#include "worker/engine/engine.h"

struct err;

struct bench {
    struct engine_config config;
    const char *setting; // that has named the parts
    struct engine *eng;  // of the parts that need none of their own; NULL: not yet opened
    FILE *json;          // NULL: none
};

enum { BENCH_STREAMS = 65 }; // that the parts need: 64 and one that joins

// The parts that a list names ("prompts,crowd"), in its order. As engine_new and engine_step; ST_INVAL names an unknown part, or one that this device has not.
int bench_measure(struct bench *b, const char *list, struct err *e);
// Before anything is loaded: the list names parts, and no others. Returns ST_INVAL with their names.
int bench_check_parts(const char *list, struct err *e);

// Rounds of many shapes on the device alone; where their time goes; streams that decode, by the host's clock; prompts.
int bench_shapes(struct bench *b, struct err *e);
int bench_operations(struct bench *b, struct err *e);
int bench_rounds(struct bench *b, struct err *e);
int bench_prompts(struct bench *b, struct err *e);
// Streams beside one another, undrafted, how even they are, and a prompt that joins them.
int bench_crowd(struct bench *b, struct err *e);
// Rounds with the drafter's drafts, part by part, beside those without; the operations of its blocks. ST_INVAL: there is no drafter.
int bench_drafts(struct bench *b, struct err *e);
int bench_blocks(struct bench *b, struct err *e);
// One prompt as long as the context allows, and rounds at the lengths on its way.
int bench_long(struct bench *b, struct err *e);
// Cold prompts with and without the memory that mixers and MLP share.
int bench_scratch(struct bench *b, struct err *e);
// Loading beside a plain read of the same files; cold: both after the files have been put out of memory.
int bench_load(struct bench *b, struct err *e);
int bench_load_cold(struct bench *b, struct err *e);

struct bench_ask {
    uint32_t prompt, tokens, salt; // ids of the prompt; to be drawn; which prompt
    uint64_t tag;
};
// A stream without drafts that ends with its tokens alone. As engine_submit.
int bench_submit(struct engine *eng, const struct bench_ask *a, uint64_t *ret_handle,
                 struct err *e);
// One round; its milliseconds by the host's clock, until the next may begin.
int bench_step(struct engine *eng, struct engine_round *ret, double *ret_ms, struct err *e);
double bench_median(double *v, uint32_t count); // sorts v
// A line of the file of figures, where there is one: fmt is JSON.
void bench_put(const struct bench *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
