/* lobby: the one socket that every worker knows: it takes HELLO and answers WELCOME or FAIL.
 *
 * rep0, one exchange at a time: an answer that its peer does not read is given up after a second, so nobody can hold
 * the lobby. What is no HELLO is answered FAIL(invalid) here. Loop thread only. */
#pragma once
#include <stddef.h>

#include "proto/frame.h"

struct err;
struct inbox;
struct lobby; // defined in lobby.c

// Fills answer: WELCOME or FAIL. Its strings must live until the callback's caller has sent it.
typedef void lobby_on_hello(void *arg, const struct frame_hello *h, struct frame *answer);

// url: "ipc://" and the socket file's path; it gets mode 0600. ST_IO: another router listens there, or no such folder.
int lobby_open(struct lobby **ret, struct inbox *in, const char *url, lobby_on_hello *on_hello,
               void *arg, struct err *e);
// As peer_close.
void lobby_close(struct lobby *l, void (*closed)(void *arg), void *arg);
