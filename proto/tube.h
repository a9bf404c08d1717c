/* tube: a connection that carries messages both ways between two processes of one host. One side listens at a path of its
 * own, the other dials it; a message travels as u32 length (little-endian) and its bytes, as in the lobby.
 *
 * It stands on nng's byte stream and not on its pair0: there, when a connection ends while one of its callbacks has a
 * message half done, nng 1.5.2 forgets that message, and the thread that takes ended connections away waits for it for
 * ever, and with it every later close and every later notice of an end in the process.
 *
 * Events come on nng's threads, those of one kind never two at once. tube_close is not for them; all else is for any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct err;
struct nng_msg;
struct tube; // defined in tube.c

struct tube_events { // NULL: not wanted
    void *arg;
    void (*on_up)(
        void *
            arg); // of a listening side: somebody has dialled. The first one; later ones are left waiting
    // m is the callee's. False: no more for now; what was read already may still come, the rest after tube_resume.
    bool (*on_message)(void *arg, struct nng_msg *m);
    void (*on_sent)(
        void *arg); // the message of tube_send has gone to the system: the next may follow
    // Once, and for good; why lives until tube_close. A message that was being sent is gone without on_sent.
    void (*on_down)(void *arg, const char *why);
};

// url: "ipc://PATH". *ret is set before the first event. ST_IO.
int tube_listen(struct tube **ret, const char *url, const struct tube_events *events,
                struct err *e);
// ST_CLOSED: nobody listens.
int tube_dial(struct tube **ret, const char *url, const struct tube_events *events, struct err *e);
// Takes m. One at a time: not again before on_sent. On a listening side it waits for somebody to dial.
void tube_send(struct tube *t, struct nng_msg *m);
void tube_resume(struct tube *t); // after on_message answered false; harmless when none did
// Ends the connection; when it returns no event runs or will come. NULL is fine.
void tube_close(struct tube *t);
