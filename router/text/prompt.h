/* prompt: building a struct template_prompt: the template's own text, and client text that stays plain. Pure. */
#pragma once
#include <stddef.h>

struct template_prompt;
// The template's own text, in which control tokens count.
void prompt_add_mark(struct template_prompt *p, const char *text);
// Client bytes: a plain span.
void prompt_add_plain(struct template_prompt *p, const char *text, size_t len);
// Bytes [first, last) of another prompt, each as what it was.
void prompt_add_slice(struct template_prompt *p, const struct template_prompt *from, size_t first,
                      size_t last);
void prompt_reset(struct template_prompt *p); // empty, keeps the memory
// Moves first and last inwards over what Python's str.strip() removes.
void prompt_strip(const char *text, size_t *first, size_t *last);
