/* api_openapi: see api_openapi.h. Request loop. */
#include "router/api_openapi.h"
#include "router/http.h"
#include "router/send.h"

void api_openapi_handle(struct http_call *c) {
    send_reply_fixed(c, &SEND_HEAD(.status = 200, .content_type = "application/json"),
                     (const char *)openapi_json, openapi_json_bytes);
}
