/* api_tokenize: what turns text into ids and back and generates nothing: POST /tokenize (a text or a conversation),
 * /detokenize, /v1/chat/completions/render (a chat body's prompt). They run on the pool; c->app is the server. */
#pragma once

struct http_call;
void api_tokenize_handle(struct http_call *c);
void api_detokenize_handle(struct http_call *c);
void api_render_handle(struct http_call *c);
