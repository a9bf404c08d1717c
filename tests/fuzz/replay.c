/* replay: runs a fuzz entry over files and folders named on the command line, without libFuzzer, as a plain test. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static int run_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "replay: open '%s': %s\n", path, strerror(errno));
        exit(1);
    }
    static uint8_t buf[1 << 20];
    size_t n = fread(buf, 1, sizeof buf, f);
    fclose(f);
    uint8_t *exact = malloc(n ? n : 1); // so that a sanitizer sees a read of one byte too many
    if (!exact) exit(1);
    memcpy(exact, buf, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    return 1;
}

static int run_path(const char *path) {
    DIR *d = opendir(path);
    if (!d) return run_file(path);
    int count = 0;
    for (struct dirent *x; (x = readdir(d));) {
        if (x->d_name[0] == '.') continue;
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, x->d_name);
        count += run_file(name);
    }
    closedir(d);
    return count;
}

int main(int argc, char **argv) {
    int count = 0;
    for (int i = 1; i < argc; i++) count += run_path(argv[i]);
    printf("replayed %d inputs\n", count);
    return count ? 0 : 1; // a corpus that is not there tests nothing
}
