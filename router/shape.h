/* shape: the parts of replies that the generating endpoints share, as JSON text. Loop thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "router/choice.h"

struct apierr;
struct request;
struct send_head;
struct strbuf;

void shape_text(struct strbuf *out, const char *s, size_t len); // a JSON string
// {"id":..,"object":..,"created":..,"model":..,"system_fingerprint":..
void shape_head(struct strbuf *out, const struct request *r, const char *object);
void shape_ids(struct strbuf *out, const char *key, const uint32_t *v, size_t count);
// ,"token_ids":[..]: those that no earlier part of the reply has told. Nothing unless asked for.
void shape_new_ids(struct strbuf *out, struct choice *c);
void shape_usage(struct strbuf *out, const struct request *r); // "usage":{..}
void shape_extras(struct strbuf *out,
                  const struct request *r);       // ,"railyard":{..}: facts of this run
const char *shape_finish(const struct choice *c); // name of its finish reason
void shape_stop_reason(struct strbuf *out, const struct choice *c); // ,"stop_reason":..
// ,"seed":..,"token_sha256":..: what makes a choice repeatable.
void shape_end(struct strbuf *out, const struct choice *c);
// {"content":[..],"refusal":null} of chat, for these ids.
void shape_chat_logprobs(struct strbuf *out, const struct choice *c,
                         const struct reply_content_id *ids, size_t count);
// {"tokens":..,"token_logprobs":..,"top_logprobs":..,"text_offset":..} of completions.
void shape_completion_logprobs(struct strbuf *out, const struct choice *c,
                               const struct reply_content_id *ids, size_t count, size_t offset);
struct send_head shape_send_head(const struct request *r, const char *type);

// Whole replies: keeps what a delta tells; writes all of it and ends the send. prompt_ids: of the one prompt, in front of
// the choices, when asked for.
void shape_keep(struct choice *c, const struct reply_delta *d);
void shape_whole_finish(struct request *r, const char *object, bool prompt_ids,
                        void (*add_choice)(struct strbuf *out, struct choice *c));
void shape_whole_begin(struct request *r); // the status line and a space, long before the reply

// Streams. A chunk is opened, its members added, closed; the buffer is the send's.
void shape_stream_begin(struct request *r); // the status line
struct strbuf *shape_open_chunk(struct request *r, const char *object);
void shape_close_chunk(struct strbuf *out, struct request *r, bool with_usage, bool with_extras);
// The rest of a choice's last chunk, from its finish reason on.
void shape_choice_end(struct strbuf *out, struct choice *c);
void shape_stream_finish(struct request *r, const char *object); // usage chunk, end mark, end
void shape_error(struct request *r, const struct apierr *e);     // plain, or an event
