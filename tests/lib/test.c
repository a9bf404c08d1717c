/* test: see test.h. */
#include "tests/lib/test.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct test *first, **last = &first;
static jmp_buf failed;
static char temp_dir[256];

void test_register(struct test *t) {
    *last = t;
    last = &t->next;
}

void test_fail(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("# %s:%d: ", file, line);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    fflush(stdout);
    longjmp(failed, 1);
}

void test_note(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("# ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    fflush(stdout);
}

void test_check_int(const char *file, int line, const char *what, long long a, long long b,
                    bool want_equal) {
    if ((a == b) != want_equal) test_fail(file, line, "%s: found %lld and %lld", what, a, b);
}

void test_check_u64(const char *file, int line, const char *what, uint64_t a, uint64_t b) {
    if (a != b)
        test_fail(file, line, "%s: found 0x%llx and 0x%llx", what, (unsigned long long)a,
                  (unsigned long long)b);
}

void test_check_str(const char *file, int line, const char *what, const char *a, const char *b) {
    if (!a || !b ? a != b : strcmp(a, b) != 0)
        test_fail(file, line, "%s: found \"%s\" and \"%s\"", what, a ? a : "(null)",
                  b ? b : "(null)");
}

void test_check_mem(const char *file, int line, const char *what, const void *a, const void *b,
                    size_t n) {
    const uint8_t *x = a, *y = b;
    for (size_t i = 0; i < n; i++)
        if (x[i] != y[i])
            test_fail(file, line, "%s: byte %zu of %zu: found %02x and %02x", what, i, n, x[i],
                      y[i]);
}

void test_check_has(const char *file, int line, const char *text, const char *part) {
    if (!text || !strstr(text, part))
        test_fail(file, line, "wanted \"%s\" in \"%s\"", part, text ? text : "(null)");
}

void test_check_near(const char *file, int line, const char *what, double a, double b,
                     double tolerance) {
    if (!(fabs(a - b) <= tolerance))
        test_fail(file, line, "%s: found %.17g and %.17g, tolerance %g", what, a, b, tolerance);
}

const char *test_source_dir(void) {
    const char *dir = getenv("RAILYARD_SOURCE");
    return dir ? dir : ".";
}

const char *test_temp_dir(void) {
    if (!temp_dir[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(temp_dir, sizeof temp_dir, "%s/railyard-test-XXXXXX", base ? base : "/tmp");
        if (!mkdtemp(temp_dir)) {
            perror("mkdtemp");
            exit(1);
        }
    }
    return temp_dir;
}

static bool wanted(const struct test *t, int argc, char **argv) {
    bool named = false, hit = false;
    for (int i = 1; i < argc; i++) {
        bool without = argv[i][0] == '-', found = strstr(t->name, argv[i] + without);
        if (without && found) return false;
        named |= !without;
        hit |= !without && found;
    }
    return hit || !named;
}

static void remove_temp_dir(void) {
    if (!temp_dir[0]) return;
    char cmd[300];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", temp_dir);
    if (system(cmd)) fprintf(stderr, "could not remove %s\n", temp_dir);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    static int n, bad; // static: they live across longjmp
    for (struct test *t = first; t; t = t->next) n += wanted(t, argc, argv);
    printf("1..%d\n", n);
    n = 0;
    for (struct test *volatile t = first; t; t = t->next) {
        if (!wanted(t, argc, argv)) continue;
        n++;
        if (setjmp(failed) == 0) {
            t->run();
            printf("ok %d %s\n", n, t->name);
        } else {
            bad++;
            printf("not ok %d %s\n", n, t->name);
        }
    }
    if (!bad) remove_temp_dir();
    return bad != 0;
}
