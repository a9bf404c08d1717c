/* h2early: an HTTP/2 request whose body is still coming: how much there is of it, and its handler called before it is whole.
 *
 * The packaged h2o resets a stream whose body is too large as "refused", which tells a client that it may send all of it
 * once more. This reaches into h2o's own structs, as its installed header has them. Loop thread. */
#pragma once
#include <h2o.h>
#include <stdbool.h>
#include <stddef.h>

// Bytes of the body so far, and as announced (SIZE_MAX: not said). 0 of a request that waits for none.
size_t h2early_bytes(const h2o_req_t *req, size_t *ret_announced);
// Bytes of memory that a request keeps until its handler is reached: its head's fields and what has come of its body.
size_t h2early_held(const h2o_req_t *req);
// h2o has said GOAWAY, and takes no new request. False of a connection that is not HTTP/2 (yet).
bool h2early_ending(const h2o_socket_t *sock);
// As its head announced; SIZE_MAX: it did not. Of any request over HTTP/2.
size_t h2early_announced(const h2o_req_t *req);
// The handler gets it now, with what has come; it must answer at once. What follows of the body must not reach h2o
// (h2ignore.h). Returns the stream's number.
uint32_t h2early_dispatch(h2o_req_t *req);
// What the client may send more: on the connection (stream_id 0) or a stream.
void h2early_credit(h2o_socket_t *sock, uint32_t stream_id, uint32_t bytes);
// The client is to send no more on a stream that was answered whole.
void h2early_reset(h2o_socket_t *sock, uint32_t stream_id);
