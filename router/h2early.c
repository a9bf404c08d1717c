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

size_t h2early_held(const h2o_req_t *req) {
    const h2o_http2_stream_t *s = stream_of(req);
    size_t bytes = s->_req_body ? s->_req_body->size : 0;
    // A pool gives nothing back, and the list of fields grows by doubling.
    bytes += 2 * req->headers.capacity * sizeof *req->headers.entries;
    for (size_t i = 0; i < req->headers.size; i++)
        bytes += req->headers.entries[i].name->len + req->headers.entries[i].value.len;
    return bytes;
}

bool h2early_ending(const h2o_socket_t *sock) {
    const h2o_http2_conn_t *conn = sock->data;
    bool is_http2 =
        conn->super.callbacks->push_path; // an HTTP/1 connection begins alike, and has none
    return is_http2 && conn->state >= H2O_HTTP2_CONN_STATE_HALF_CLOSED;
}

size_t h2early_announced(const h2o_req_t *req) {
    return stream_of(req)->_expected_content_length;
}

// As h2o itself does with a head it cannot take.
uint32_t h2early_dispatch(h2o_req_t *req) {
    h2o_http2_stream_t *s = stream_of(req);
    h2o_http2_conn_t *conn = (h2o_http2_conn_t *)req->conn;
    h2o_http2_stream_set_state(conn, s, H2O_HTTP2_STREAM_STATE_REQ_PENDING);
    h2o_http2_stream_set_state(conn, s, H2O_HTTP2_STREAM_STATE_SEND_HEADERS);
    req->entity = h2o_iovec_init(s->_req_body->bytes, s->_req_body->size);
    uint32_t id = s->stream_id;
    h2o_process_request(req);
    return id;
}

static h2o_http2_conn_t *conn_of_socket(h2o_socket_t *sock) {
    return sock->data;
}

void h2early_credit(h2o_socket_t *sock, uint32_t stream_id, uint32_t bytes) {
    h2o_http2_conn_t *conn = conn_of_socket(sock);
    h2o_http2_encode_window_update_frame(&conn->_write.buf, stream_id, (int32_t)bytes);
    h2o_http2_conn_request_write(conn);
}

void h2early_reset(h2o_socket_t *sock, uint32_t stream_id) {
    h2o_http2_conn_t *conn = conn_of_socket(sock);
    h2o_http2__encode_rst_stream_frame(&conn->_write.buf, stream_id, 0); // NO_ERROR
    h2o_http2_conn_request_write(conn);
}
