/* wire: a worker's connection to its router: lobby, HELLO and WELCOME, then the socket of this incarnation.
 *
 * One thread, the link thread, joins, takes and closes; wire_send is for any thread. nng's own threads only put
 * messages on lists and wake the link thread through a descriptor that can be polled. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"

struct arena;
struct err;
struct wire; // defined in wire.c

enum {
    WIRE_OUT_BYTES_MAX = 16 << 20, // waiting to be sent; over it a sender waits
    WIRE_IN_BYTES_MAX =
        32 << 20,          // waiting to be taken; over it nothing more is read from the socket
    WIRE_STALL_MS = 10000, // a sender waits no longer than this: then the router counts as gone
};

struct wire_config {
    const char *lobby; // nng url: "ipc:///run/railyard/lobby.sock"
    const struct frame_hello *hello;
    int stop_fd; // readable: give up joining (a signalfd); -1: none
};

// Dials the lobby, says HELLO, dials the socket that WELCOME names. ST_VERSION or ST_UNSUPPORTED: the router refused
// this worker for good, e has its words. ST_CANCELLED: stop_fd. Else ST_CLOSED (its ranks are taken, too), ST_TIMEOUT or ST_CORRUPT: no router
// there, or one that is just going: asking again later can help.
int wire_join(struct wire **ret, const struct wire_config *c, struct err *e);
const struct frame_welcome *wire_welcome(const struct wire *w);
// Readable when wire_take has something to say. wire_take clears it.
int wire_fd(const struct wire *w);
// The next frame. What it points to lives in a and in the message, which is kept until the next call.
// ST_NOT_FOUND: none has come; ST_CLOSED: the router has gone; ST_CORRUPT: it sent a frame that is none.
// Frames of another generation and of unknown types are passed over.
int wire_take(struct wire *w, struct frame *ret, struct arena *a, struct err *e);
// Sends f with this incarnation's generation. Waits while too much is unsent. ST_CLOSED or ST_TIMEOUT: the router has
// gone; ST_FULL: larger than a frame may be.
int wire_send(struct wire *w, struct frame *f, struct err *e);
// As wire_send, bytes as they are: frames encoded before, and what tests send in their place.
int wire_send_bytes(struct wire *w, const void *p, size_t len, struct err *e);
// Ends the connection. linger_ms > 0: what was sent last (a GOODBYE) gets that long to arrive, which the router
// shows by closing its side.
void wire_close(struct wire *w, uint32_t linger_ms); // NULL is fine
