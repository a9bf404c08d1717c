/* relay: streams at workers: gives each a slot and an epoch, sends SUBMIT, and takes TOKENS, DONE and FAIL back to
 * the choices. A frame of a slot's earlier user does not match its epoch and is dropped. Ids must come without a gap
 * or a repeat; a worker that breaks that has its stream failed and is dropped itself. Loop thread. */
#pragma once
#include <stdint.h>

#include "proto/frame.h"

struct backend;
struct err;
struct relay; // defined in relay.c
struct choice;
struct server;

struct relay *relay_new(struct server *s);
void relay_free(struct relay *r);

// ST_FULL, ST_CLOSED: as backend_submit; the choice stays as it was.
int relay_submit(struct relay *r, struct choice *q, struct backend *b, struct err *e);
void relay_cancel(struct relay *r,
                  struct choice *q); // gives its slot back; not at a worker is fine
void relay_on_frame(struct relay *r, struct backend *b, const struct frame *f);
// planned: the worker ended in good order. Its requests wait for another worker (resume.h).
void relay_on_lost(struct relay *r, struct backend *b, const char *reason, bool planned);
// Takes every stream away from a worker that goes on living: to wait for another one, or to fail.
void relay_move_all(struct relay *r, struct backend *b);
void relay_cancel_all(struct relay *r, struct backend *b, const char *why);
// Prompt ids that were sent to the rank and are not filled yet.
uint64_t relay_unfilled(const struct relay *r, uint32_t rank);
uint32_t relay_streams(const struct relay *r);
