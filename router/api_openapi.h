/* api_openapi: GET /openapi.json: the API as OpenAPI 3.1, router/openapi.json as it was at the build. */
#pragma once

struct http_call;

extern const unsigned char openapi_json[];
extern const unsigned long openapi_json_bytes;

void api_openapi_handle(struct http_call *c);
