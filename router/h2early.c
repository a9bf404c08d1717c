/* h2early: see h2early.h. */
#include "router/h2early.h"

#include <h2o/http2.h>
#include <stdbool.h>

#include <h2o/http2_internal.h> // wants the one above first

static h2o_http2_stream_t *stream_of(const h2o_req_t *req) {
    return (h2o_http2_stream_t *)(uintptr_t)((const char *)req - offsetof(h2o_http2_stream_t, req));
}

size_t h2early_bytes(const h2o_req_t *req, size_t *ret_announced) {
    const h2o_http2_stream_t *s = stream_of(req);
    bool receiving = s->state == H2O_HTTP2_STREAM_STATE_RECV_BODY && s->_req_body;
    *ret_announced = receiving ? s->_expected_content_length : SIZE_MAX;
    return receiving ? s->_req_body->size : 0;
}

// As h2o itself does with a head it cannot take.
void h2early_dispatch(h2o_req_t *req) {
    h2o_http2_stream_t *s = stream_of(req);
    h2o_http2_conn_t *conn = (h2o_http2_conn_t *)req->conn;
    h2o_http2_stream_set_state(conn, s, H2O_HTTP2_STREAM_STATE_REQ_PENDING);
    h2o_http2_stream_set_state(conn, s, H2O_HTTP2_STREAM_STATE_SEND_HEADERS);
    req->entity = h2o_iovec_init(s->_req_body->bytes, s->_req_body->size);
    h2o_process_request(req);
}
