/* frame_fuzz: any bytes given to the frame decoder are refused or decoded; what was decoded, encoded again, decodes
 * to the same bytes. Built with libFuzzer (-Dfuzz=true, clang), or with replay.c, which runs the committed corpus. */
#include "common/arena.h"
#include "common/err.h"
#include "common/strbuf.h"
#include "proto/frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(bool right) {
    if (!right) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static struct arena a;
    static struct strbuf first, second;
    struct frame f;
    struct err e;
    arena_reset(&a);
    if (frame_decode(&f, bytes, len, &a, &e)) return 0;
    strbuf_reset(&first);
    if (frame_encode(&first, &f, &e)) return 0; // shorter numbers on the way in than on the way out
    check(!frame_decode(&f, (const uint8_t *)first.p, first.len, &a, &e));
    strbuf_reset(&second);
    check(!frame_encode(&second, &f, &e));
    check(first.len == second.len && !memcmp(first.p, second.p, first.len));
    return 0;
}
