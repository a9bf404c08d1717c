/* api_models: GET /v1/models and /v1/models/{id}. Loop thread; c->app is the server. */
#pragma once

struct http_call;
void api_models_list(struct http_call *c);
void api_models_one(struct http_call *c);
