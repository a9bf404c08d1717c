/* inbox: the way from nng's threads to the loop. They post what happened, the loop runs it in the order of arrival.
 *
 * inbox_post is for any thread; all else is the loop's. Nothing is lost and nothing waits: the list is lock-free and
 * the loop is woken when it was empty. Whoever posts must have stopped (tube_close) before inbox_close. */
#pragma once
#include <stdatomic.h>
#include <uv.h>

struct nng_msg;
struct inbox_item {
    struct inbox_item *next;
    void (*run)(void *owner, struct nng_msg *msg); // on the loop; msg is its own
    void *owner;
    struct nng_msg *msg; // NULL: none
};

struct inbox {
    _Atomic(struct inbox_item *) newest; // a stack; drained as a whole and turned round
    uv_async_t wake;
    void (*closed)(void *arg);
    void *arg;
};

int inbox_open(struct inbox *in, uv_loop_t *loop);
void inbox_post(struct inbox *in, void (*run)(void *, struct nng_msg *), void *owner,
                struct nng_msg *msg);
void inbox_drain(struct inbox *in); // runs what is there now
void inbox_close(struct inbox *in, void (*closed)(void *arg), void *arg);
