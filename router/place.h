/* place: which worker the waiting choices go to: pick.c chooses, relay.c hands over. Loop thread. */
#pragma once

struct server;

// Everything in the queue that a worker takes now, in order; but one that waits for a worker of its kind, or for its own,
// does not hold up those behind it.
void place_all(struct server *s);
