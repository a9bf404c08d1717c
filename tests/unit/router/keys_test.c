/* API keys: the file's lines, what is refused and how it is named, and that a bad file changes nothing. */
#include "common/err.h"
#include "router/keys.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

// SHA-256 of "secret" and of "other".
#define SECRET "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
#define OTHER "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"

static char path[64];

static void write_file(const char *text) {
    snprintf(path, sizeof path, "/tmp/railyard-keys-%d", (int)getpid());
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static struct key *take(struct keys *k, const char *secret) {
    return keys_take(k, secret, strlen(secret));
}

TEST(a_line_gives_a_key_with_its_class_and_options) {
    struct keys *k;
    struct err e = {0};
    write_file("# keys\n\nalice:user:" SECRET ":priority_min=5,weight=3,models=demo|tiny\r\n"
               "root:admin:" OTHER "\n");
    CHECK_OK(keys_open(&k, path, "", &e), e);
    CHECK(keys_any(k) && keys_any_admin(k));
    struct key *a = take(k, "secret"), *b = take(k, "other");
    CHECK_STR(a->name, "alice");
    CHECK(!a->is_admin && b->is_admin);
    CHECK_EQ(a->priority_min, 5);
    CHECK_EQ(a->weight, 3);
    CHECK(key_allows_model(a, "demo") && key_allows_model(a, "tiny") && key_allows_model(b, "x"));
    CHECK(!key_allows_model(a, "dem") && !key_allows_model(a, "demo|tiny"));
    CHECK(!take(k, "secre") && !take(k, "secret ") && !take(k, ""));
    keys_give(k, a);
    keys_give(k, b);
    keys_close(k);
    unlink(path);
}

TEST(keys_in_plain_text_are_of_class_user) {
    struct keys *k;
    struct err e = {0};
    CHECK_OK(keys_open(&k, "", "one,two", &e), e);
    struct key *two = take(k, "two");
    CHECK_STR(two->name, "key2");
    CHECK(!two->is_admin && !keys_any_admin(k));
    keys_give(k, two);
    keys_close(k);
    CHECK_OK(keys_open(&k, "", "", &e), e);
    CHECK(!keys_any(k));
    keys_close(k);
}

TEST(a_bad_line_is_named_and_never_shows_what_may_be_a_key) {
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"alice:user:" SECRET "\nbob:user:hunter2\n", "line 2: wanted the 64 hex digits"},
        {"alice:root:" SECRET "\n", "line 1: wanted the class user or admin, found 'root'"},
        {"alice\n", "line 1: wanted the class user or admin, found 'nothing'"},
        {"a b:user:" SECRET "\n", "line 1: wanted a name"},
        {"a:user:" SECRET ":weight=0\n", "found 'weight=0'"},
        {"a:user:" SECRET ":speed=9\n", "found 'speed=9'"},
        {"a:user:" SECRET "\na:user:" OTHER "\n", "line 2: the name 'a' comes twice"},
        {"a:user:" SECRET "\nb:user:" SECRET "\n", "'a' and 'b' are the same key"},
        {"# nothing\n", "wanted at least one key"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct keys *k = NULL;
        struct err e = {0};
        write_file(bad[i].text);
        CHECK_EQ(keys_open(&k, path, "", &e), ST_INVAL);
        CHECK(!k);
        CHECK_HAS(e.msg, bad[i].says);
        CHECK(!strstr(e.msg, "hunter2"));
    }
    unlink(path);
}

TEST(a_file_that_has_become_bad_changes_nothing_and_a_held_key_outlives_its_set) {
    struct keys *k;
    struct err e = {0};
    write_file("alice:user:" SECRET "\n");
    CHECK_OK(keys_open(&k, path, "", &e), e);
    write_file("alice:user:oops\n");
    CHECK_EQ(keys_reload(k, &e), ST_INVAL);
    struct key *a = take(k, "secret");
    CHECK(a);
    write_file("bob:user:" OTHER "\n");
    CHECK_OK(keys_reload(k, &e), e);
    CHECK(!take(k, "secret"));
    CHECK_STR(a->name, "alice");
    keys_give(k, a);
    keys_close(k);
    unlink(path);
}
