/* lobby_call: HELLO to a router's lobby and its answer: a plain unix stream, see router/lobby.h. Link thread. */
#pragma once
#include <stdint.h>

struct err;
struct frame;
struct strbuf;

enum { LOBBY_CALL_MS = 5000 };

// Whether url is one that can be dialled: ipc:// and a path. ST_INVAL says what was wanted.
int lobby_check(const char *url, struct err *e);
// Sends hello and puts the answer's frame bytes into ret. stop_fd readable: ST_CANCELLED; -1: none. ST_CLOSED: nobody
// listens or it hung up; ST_TIMEOUT; ST_CORRUPT: the answer is longer than a lobby's frame may be.
int lobby_call(const char *url, const struct frame *hello, int stop_fd, struct strbuf *ret,
               struct err *e);
