/* api_completions: /v1/completions: text behind a text, whole or as a stream of events. Loop thread. */
#pragma once

struct http_call;
void api_completions_handle(struct http_call *c); // c->app is the server
