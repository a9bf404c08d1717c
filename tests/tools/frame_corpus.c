/* frame_corpus: writes the seeds of tests/fuzz/corpus/frame: frame_corpus FOLDER.
 * One file for each frame type and sample size that stays under 4 KiB, and one for each hostile shape. */
#include "common/arena.h"
#include "common/err.h"
#include "common/strbuf.h"
#include "tests/lib/frame_samples.h"

#include <stdio.h>
#include <stdlib.h>

enum { SEED_BYTES_MAX = 4096 };

static void write_seed(const char *folder, const char *name, const char *p, size_t len) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, len, f) != len || fclose(f)) {
        perror(path);
        exit(1);
    }
}

static void write_samples(const char *folder) {
    struct arena a = {0};
    struct strbuf b = {0};
    for (int t = FRAME_HELLO; t < FRAME_TYPE_END; t++) {
        for (int size = 0; size < FRAME_SAMPLE_SIZES; size++) {
            struct frame f;
            struct err e;
            char name[64];
            strbuf_reset(&b);
            frame_sample(&f, (enum frame_type)t, (enum frame_sample_size)size, &a);
            if (frame_encode(&b, &f, &e) || b.len > SEED_BYTES_MAX) continue;
            snprintf(name, sizeof name, "%s-%d", frame_type_name(f.type), size);
            write_seed(folder, name, b.p, b.len);
        }
    }
    strbuf_fini(&b);
    arena_fini(&a);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: frame_corpus FOLDER\n");
        return 2;
    }
    static const struct {
        const char *name, *bytes;
        size_t len;
    } hostile[] = {
        {"empty", "", 0},
        {"huge-array", "\xdd\x0f\xff\xff\xff", 5},
        {"huge-map", "\xdf\xff\xff\xff\xff", 5},
        {"huge-bin", "\xc6\xff\xff\xff\xff", 5},
        {"deep", "\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x00", 11},
        {"extension", "\x93\x0c\x01\xd4\x01\x00", 6},
        {"reserved", "\x93\x0c\x01\xc1", 4},
        {"map-for-array", "\x93\x05\x01\x81\x01\x02", 6},
        {"nan", "\x94\x0a\x01\x01\xca\x7f\xc0\x00\x00", 9},
        {"unknown-type", "\x92\x7f\x01", 3},
        {"more-fields", "\x96\x0c\x01\x05\x06\xa1x\x93\x01\x02\x03", 11},
    };
    write_samples(argv[1]);
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++)
        write_seed(argv[1], hostile[i].name, hostile[i].bytes, hostile[i].len);
    return 0;
}
