/* api_chat: POST /v1/chat/completions, whole and streamed (docs/api.md). Loop thread. */
#pragma once

struct http_call;
void api_chat_handle(struct http_call *c); // c->app is the server
