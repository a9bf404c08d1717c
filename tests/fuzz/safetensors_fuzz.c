/* safetensors_fuzz: any bytes, as a whole file and as the header of a file with 64 bytes of data, are refused with a
 * one-line message or give tensors that lie inside the file and tile its data. */
#include "common/err.h"
#include "common/strbuf.h"
#include "worker/engine/safetensors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(bool right) {
    if (!right) abort();
}

static void check_tensor(const struct safetensors *s, const struct safetensors_tensor *t) {
    static float row[256];
    const uint8_t *file = safetensors_file(s), *data = t->data;
    uint64_t size = safetensors_dtype_bytes(t->dtype), elements = 1;
    for (uint32_t i = 0; i < t->dims_count; i++) elements *= t->dims[i];
    check(elements == t->elements && elements * size == t->bytes);
    check(data >= file + safetensors_data_start(s) && t->bytes <= safetensors_file_bytes(s) &&
          data + t->bytes <= file + safetensors_file_bytes(s));
    check((uint64_t)(data - file) % size == 0);
    check(safetensors_find(s, t->name) == t);
    if (t->dtype == SAFETENSORS_BF16 || t->dtype == SAFETENSORS_F16 || t->dtype == SAFETENSORS_F32)
        safetensors_to_f32(t, 0, elements < 256 ? elements : 256, row);
}

static void try_file(const void *p, size_t len) {
    struct safetensors *s = NULL;
    struct err e = {0};
    if (safetensors_open_mem(&s, "x", p, len, &e)) {
        check(s == NULL && e.st != ST_OK && e.msg[0] && !strchr(e.msg, '\n'));
        return;
    }
    uint64_t sum = 0;
    for (uint32_t i = 0; i < safetensors_count(s); i++) {
        check_tensor(s, safetensors_at(s, i));
        sum += safetensors_at(s, i)->bytes;
    }
    check(sum == safetensors_file_bytes(s) - safetensors_data_start(s));
    safetensors_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static struct strbuf b;
    static const char data[64];
    uint64_t length = len;
    try_file(bytes, len);
    strbuf_reset(&b);
    strbuf_add(&b, &length, sizeof length);
    strbuf_add(&b, bytes, len);
    strbuf_add(&b, data, sizeof data);
    try_file(b.p, b.len);
    return 0;
}
