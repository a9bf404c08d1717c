/* lobby: the one socket that every worker knows: it takes HELLO and answers WELCOME or FAIL.
 *
 * A plain unix stream: u32 length (little-endian), a frame; the answer alike; the end. On the loop itself, because a
 * HELLO is one message that any process may send or break off. What is no HELLO is answered FAIL(invalid)
 * here; a peer that is slow, silent or one too many is dropped. Loop thread only. */
#pragma once
#include <stddef.h>
#include <uv.h>

#include "proto/frame.h"

struct err;
struct lobby; // defined in lobby.c

enum {
    LOBBY_CLIENTS_MAX = 64, // that have not been answered
    LOBBY_CLIENT_MS = 5000, // from the connection to the end of the answer
};

// Fills answer: WELCOME or FAIL. Its strings must live until the callback's caller has encoded it.
typedef void lobby_on_hello(void *arg, const struct frame_hello *h, struct frame *answer);

// url: "ipc://" and the socket file's path; it gets mode 0600. A file that nobody listens on is replaced.
// ST_IO: another router listens there, or no such folder.
int lobby_open(struct lobby **ret, uv_loop_t *loop, const char *url, lobby_on_hello *on_hello,
               void *arg, struct err *e);
// Frees l, then calls closed(arg), on the loop.
void lobby_close(struct lobby *l, void (*closed)(void *arg), void *arg);
