/* bench_receipt: a bench's receipt as JSON, there and back. docs/bench.md describes the file. */
#pragma once
#include <jansson.h>

#include "router/bench.h"

enum { BENCH_RECEIPT_BYTES_MAX = 256 << 20 };

struct err;
json_t *bench_receipt_to_json(const struct bench_receipt *r);
// ST_VERSION for a receipt of another format, ST_CORRUPT for what is none; the message names the member.
int bench_receipt_from_json(struct bench_receipt *ret, const json_t *o, struct err *e);

int bench_receipt_save(const struct bench_receipt *r, const char *path, struct err *e);
int bench_receipt_load(struct bench_receipt *ret, const char *path, struct err *e);
