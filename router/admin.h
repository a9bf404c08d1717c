/* admin: what the ops listener does to the request loop: workers, requests, drains (docs/api.md).
 *
 * A call is read and answered on the ops thread; in between it goes to the request loop, which alone may touch workers
 * and requests, and comes back: a job. Two inboxes carry it. Nobody waits for the other side, so a stuck request loop
 * leaves health and metrics alone; a client that hangs up meanwhile is forgotten. */
#pragma once
#include <stdint.h>
#include <uv.h>

struct admin; // defined in admin.c
struct http_call;
struct send_set;
struct server;

// Request loop: before the ops thread starts, and after it has ended (admin_free; NULL is fine).
struct admin *admin_new(struct server *s);
// Closes the loop's side; the loop must turn until it is done, then admin_free.
void admin_close(struct admin *a);
void admin_free(struct admin *a);

// Ops thread: its first call and its last. The loop must turn once more after admin_detach.
void admin_attach(struct admin *a, uv_loop_t *loop, struct send_set *sends);
void admin_detach(struct admin *a);

uint64_t admin_last_beat_ms(const struct admin *a); // when the ops loop turned last; any thread

// Endpoints: c->app begins with a struct admin_app.
void admin_handle_worker(struct http_call *c);    // /admin/v1/workers/{rank}[/{verb}]
void admin_handle_restart(struct http_call *c);   // POST /admin/v1/restart
void admin_handle_operation(struct http_call *c); // GET, DELETE /admin/v1/operations/{id}
void admin_handle_drain(struct http_call *c);     // GET, POST /admin/v1/drain
void admin_handle_undrain(struct http_call *c);   // POST /admin/v1/undrain
void admin_handle_reload(struct http_call *c);    // POST /admin/v1/reload
void admin_handle_requests(struct http_call *c);  // GET /admin/v1/requests
void admin_handle_request(struct http_call *c);   // DELETE /admin/v1/requests/{id}
void admin_handle_config(struct http_call *c);    // GET /admin/v1/config
void admin_handle_log_level(struct http_call *c); // PUT /admin/v1/log_level
