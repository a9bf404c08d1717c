/* bench_prompts: what the benches ask. JSON lines, one prompt each:
 *
 *   {"class": "code", "prompt": "text of one user message"}
 *   {"class": "chat", "messages": [{"role": "user", "content": "..."}, ...]}
 *
 * Cold prompts may leave "class" out. Blank lines are read over. Main thread only. */
#pragma once
#include <jansson.h>

#include "router/bench.h"

enum { BENCH_PROMPTS_BYTES_MAX = 64 << 20 };

struct err;
struct bench_prompt {
    enum bench_class class;
    json_t *messages;
};
struct bench_prompts {
    struct bench_prompt *v;
    size_t count;
    char sha256[SHA256_HEX_BYTES]; // of classes and messages in order
};

// need_class: a line without "class" is refused. Errors name the file, the line, what was wanted and found.
int bench_prompts_read(struct bench_prompts *ret, const char *path, bool need_class, struct err *e);
int bench_prompts_parse(struct bench_prompts *ret, const char *name, const char *text, size_t len,
                        bool need_class, struct err *e);
void bench_prompts_builtin(struct bench_prompts *ret); // eight of each class
void bench_prompts_fini(struct bench_prompts *p);
// The number-th of a class, from the first again behind the last; NULL when the class has none.
const struct bench_prompt *bench_prompts_at(const struct bench_prompts *p, enum bench_class class,
                                            uint32_t number);
