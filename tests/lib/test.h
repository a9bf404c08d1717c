/* test: TEST(name) { ... } registers itself; the checks print both values and end the test.
 *
 * The program prints TAP, so meson counts each test. Its arguments name the tests to run (substring), or with a - before them those
 * not to run; none: all.
 * A test runs in the main thread; checks may be used only there (threads report back by values). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct test {
    const char *name;
    void (*run)(void);
    struct test *next;
};
void test_register(struct test *t);
_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void test_check_int(const char *file, int line, const char *what, long long a, long long b,
                    bool want_equal);
void test_check_u64(const char *file, int line, const char *what, uint64_t a, uint64_t b);
void test_check_str(const char *file, int line, const char *what, const char *a, const char *b);
void test_check_mem(const char *file, int line, const char *what, const void *a, const void *b,
                    size_t n);
void test_check_has(const char *file, int line, const char *text, const char *part);
void test_check_near(const char *file, int line, const char *what, double a, double b,
                     double tolerance);
// A line of output that is no result: figures a suite prints.
void test_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// The folder of the sources (tests/, shared data); set by meson through RAILYARD_SOURCE.
const char *test_source_dir(void);
// A fresh folder of this test program, removed when it ends well.
const char *test_temp_dir(void);

#define TEST(name_)                                                                                \
    static void test_##name_(void);                                                                \
    static struct test test_entry_##name_ = {#name_, test_##name_, NULL};                          \
    __attribute__((constructor)) static void test_add_##name_(void) {                              \
        test_register(&test_entry_##name_);                                                        \
    }                                                                                              \
    static void test_##name_(void)

#define CHECK(c)                                                                                   \
    do {                                                                                           \
        if (!(c)) test_fail(__FILE__, __LINE__, "not true: %s", #c);                               \
    } while (0)
#define CHECK_EQ(a, b)                                                                             \
    test_check_int(__FILE__, __LINE__, #a " == " #b, (long long)(a), (long long)(b), true)
#define CHECK_NE(a, b)                                                                             \
    test_check_int(__FILE__, __LINE__, #a " != " #b, (long long)(a), (long long)(b), false)
#define CHECK_EQ_U64(a, b) test_check_u64(__FILE__, __LINE__, #a " == " #b, (a), (b))
#define CHECK_STR(a, b) test_check_str(__FILE__, __LINE__, #a " == " #b, (a), (b))
#define CHECK_MEM(a, b, n) test_check_mem(__FILE__, __LINE__, #a " == " #b, (a), (b), (n))
#define CHECK_HAS(text, part) test_check_has(__FILE__, __LINE__, (text), (part))
#define CHECK_NEAR(a, b, tol) test_check_near(__FILE__, __LINE__, #a " ~ " #b, (a), (b), (tol))
// A call that returns a status and fills e.
#define CHECK_OK(call, e_)                                                                         \
    do {                                                                                           \
        int st_ = (call);                                                                          \
        if (st_) test_fail(__FILE__, __LINE__, "%s: status %d: %s", #call, st_, (e_).msg);         \
    } while (0)
