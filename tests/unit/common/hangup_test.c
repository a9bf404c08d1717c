/* hangup: connections of one path end, and no others. */
#include "common/hangup.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct line {
    char url[200];
    int listener, dialled, accepted;
};

static void open_line(struct line *l, const char *name) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%.80s/%.16s", test_temp_dir(), name);
    snprintf(l->url, sizeof l->url, "ipc://%s", a.sun_path);
    l->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(l->listener, (struct sockaddr *)&a, sizeof a), 0);
    CHECK_EQ(listen(l->listener, 4), 0);
    l->dialled = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(connect(l->dialled, (struct sockaddr *)&a, sizeof a), 0);
    l->accepted = accept(l->listener, NULL, NULL);
    CHECK(l->accepted >= 0);
}

static bool at_end(int fd) {
    char c;
    return recv(fd, &c, 1, MSG_DONTWAIT) == 0;
}

TEST(both_ends_of_the_named_path_are_shut_and_nothing_else) {
    struct line a, b;
    open_line(&a, "a.sock");
    open_line(&b, "b.sock");
    CHECK_EQ(hangup_url(a.url), 2); // both ends are in this process
    CHECK(at_end(a.dialled) && at_end(a.accepted));
    CHECK(!at_end(b.dialled) && !at_end(b.accepted));
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    snprintf(where.sun_path, sizeof where.sun_path, "%.100s", a.url + 6);
    int again = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(connect(again, (struct sockaddr *)&where, sizeof where), 0); // it still listens
    CHECK_EQ(hangup_url("ipc:///no/such/path"), 0);
    CHECK_EQ(hangup_url("tcp://127.0.0.1:1"), 0);
    int fds[] = {a.listener, a.dialled, a.accepted, b.listener, b.dialled, b.accepted, again};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) close(fds[i]);
}
