/* peer: one incarnation of a worker as a socket, listened to by the router, dialled by the worker: see proto/tube.h.
 *
 * A restarted worker gets a new peer on a new path, so that nothing of a dead process reaches the next one.
 * Sending is a queue bounded in bytes with one message in the tube; cancels wait in it too, merge with each
 * other, and are never refused. Loop thread only; the tube's events go through the inbox. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"

struct err;
struct inbox;
struct peer; // defined in peer.c

enum {
    PEER_OUT_BYTES_MAX = 32 << 20, // waiting to be sent; over it SUBMITs are refused
    PEER_IN_BYTES_MAX =
        64 << 20, // received and not yet run; over it nothing is read from the socket
};

struct peer_events { // on the loop; none after peer_close
    void *arg;
    void (*on_up)(void *arg);                                        // the worker has dialled
    void (*on_message)(void *arg, const uint8_t *bytes, size_t len); // bytes end with the call
    // For good, and after the last message that came. The peer is still to be closed.
    void (*on_down)(void *arg, const char *why);
};

// Listens at once. url: "ipc://...", mode 0600.
int peer_new(struct peer **ret, struct inbox *in, const char *url, uint32_t generation,
             const struct peer_events *events, struct err *e);
// Queues f with the peer's generation. ST_FULL: over the byte limit, or f is larger than a frame may be.
int peer_send(struct peer *p, struct frame *f, struct err *e);
// Behind all that was queued before, merged with the cancels that wait there.
void peer_cancel(struct peer *p, struct frame_stream s);
// No event comes any more. The socket closes on a pool thread, since that waits for nng's; then closed(arg) on the loop.
void peer_close(struct peer *p, void (*closed)(void *arg), void *arg);
