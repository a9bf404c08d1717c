/* inbox: see inbox.h. */
#include "router/inbox.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

static void on_wake(uv_async_t *h) {
    inbox_drain(h->data);
}

int inbox_open(struct inbox *in, uv_loop_t *loop) {
    memset(in, 0, sizeof *in);
    in->wake.data = in;
    return uv_async_init(loop, &in->wake, on_wake);
}

void inbox_post(struct inbox *in, void (*run)(void *, struct nng_msg *), void *owner,
                struct nng_msg *msg) {
    struct inbox_item *x = mem_alloc(sizeof *x);
    *x = (struct inbox_item){NULL, run, owner, msg};
    x->next = atomic_load_explicit(&in->newest, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&in->newest, &x->next, x, memory_order_release,
                                                  memory_order_relaxed))
        continue;
    // x may be gone by now: only what was read before the exchange counts. A wake too many is harmless.
    uv_async_send(&in->wake);
}

void inbox_drain(struct inbox *in) {
    struct inbox_item *x = atomic_exchange_explicit(&in->newest, NULL, memory_order_acquire);
    struct inbox_item *oldest = NULL;
    while (x) { // turn the stack round
        struct inbox_item *next = x->next;
        x->next = oldest;
        oldest = x;
        x = next;
    }
    while (oldest) {
        struct inbox_item item = *oldest;
        free(oldest);
        oldest = item.next;
        item.run(item.owner, item.msg);
    }
}

static void on_closed(uv_handle_t *h) {
    struct inbox *in = h->data;
    in->closed(in->arg);
}

void inbox_close(struct inbox *in, void (*closed)(void *arg), void *arg) {
    in->closed = closed;
    in->arg = arg;
    uv_close((uv_handle_t *)&in->wake, on_closed);
}
