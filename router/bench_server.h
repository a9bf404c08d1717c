/* bench_server: which server a bench speaks to: build, model, checkpoint, device. */
#pragma once

struct bench_receipt;
struct bench_target;
struct err;

// Fills the server's part of the receipt from GET /version and GET /v1/models. Blocks. What a server does not tell stays
// ""; one that cannot be reached or is not ready is an error.
int bench_server_learn(struct bench_receipt *r, const struct bench_target *t, struct err *e);
