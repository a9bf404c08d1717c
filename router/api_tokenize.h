/* api_tokenize: POST /tokenize: a text or a conversation into ids. Runs on the pool; c->app is the server. */
#pragma once

struct http_call;
void api_tokenize_handle(struct http_call *c);
