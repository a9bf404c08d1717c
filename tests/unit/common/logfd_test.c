/* logfd: a reader that does not read costs lines at the bound, and nobody any time. */
#include "common/logfd.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LINE_BYTES = 100 };

static bool write_line(struct logfd *l, unsigned number) {
    char line[LINE_BYTES + 1];
    snprintf(line, sizeof line, "%08u %0*u\n", number, LINE_BYTES - 10, number);
    return logfd_write(l, line, LINE_BYTES);
}

// Reads all there is, flushing between, and checks that lines are whole and ascend. How many there were.
static unsigned read_lines(struct logfd *l, int fd, unsigned *last) {
    char line[LINE_BYTES];
    unsigned count = 0;
    size_t have = 0;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    for (;;) {
        logfd_flush(l);
        ssize_t n = read(fd, line + have, sizeof line - have);
        if (n <= 0) break;
        have += (size_t)n;
        if (have < sizeof line) continue;
        unsigned number = (unsigned)strtoul(line, NULL, 10);
        CHECK(line[8] == ' ' && line[LINE_BYTES - 1] == '\n');
        CHECK(count == 0 || number > *last);
        *last = number;
        have = 0;
        count++;
    }
    CHECK_EQ(have, 0);
    return count;
}

// Fills what the other side does not read, past the bound; then reads.
static void check_full_and_read(struct logfd *l, int out) {
    enum { MORE = 50 };
    unsigned taken = 0, last = 0;
    while (write_line(l, taken)) taken++;
    CHECK(taken >= LOGFD_BYTES_MAX / LINE_BYTES);
    for (unsigned i = 1; i < MORE; i++) CHECK(!write_line(l, taken + i));
    CHECK_EQ(logfd_take_dropped(l), 0); // nobody could be told yet
    CHECK_EQ(read_lines(l, out, &last), taken);
    CHECK_EQ(last, taken - 1);
    CHECK_EQ(logfd_take_dropped(l), MORE);
    CHECK_EQ(logfd_take_dropped(l), 0);
    CHECK(write_line(l, 77));
    CHECK_EQ(read_lines(l, out, &last), 1);
}

TEST(a_pipe_that_nobody_reads_costs_lines_and_no_time) {
    struct logfd l;
    int fds[2];
    CHECK_EQ(pipe2(fds, O_CLOEXEC), 0);
    logfd_open(&l, fds[1]);
    CHECK(l.own && !l.may_wait); // a description of its own
    check_full_and_read(&l, fds[0]);
    CHECK_EQ(fcntl(fds[1], F_GETFL) & O_NONBLOCK, 0); // whoever shares it may go on waiting
    logfd_close(&l);
    close(fds[0]);
    close(fds[1]);
}

// Where the pipe cannot be opened anew, it is asked first.
TEST(a_pipe_of_others_is_asked_before_each_write) {
    int fds[2];
    CHECK_EQ(pipe2(fds, O_CLOEXEC), 0);
    struct logfd l = {.fd = fds[1], .may_wait = true};
    check_full_and_read(&l, fds[0]);
    logfd_close(&l);
    close(fds[0]);
    close(fds[1]);
}

TEST(a_socket_that_nobody_reads_costs_lines_and_no_time) {
    struct logfd l;
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    logfd_open(&l, fds[1]);
    CHECK(l.is_socket && !l.own);
    check_full_and_read(&l, fds[0]);
    logfd_close(&l);
    close(fds[0]);
    close(fds[1]);
}

TEST(a_file_takes_everything_and_none_nothing) {
    char path[300], got[LINE_BYTES];
    struct logfd l, none;
    snprintf(path, sizeof path, "%s/log", test_temp_dir());
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    logfd_open(&l, fd);
    for (unsigned i = 0; i < 1000; i++) CHECK(write_line(&l, i));
    CHECK_EQ(l.kept.len, 0);
    CHECK_EQ(lseek(fd, 0, SEEK_END), 1000 * LINE_BYTES);
    CHECK_EQ(pread(fd, got, sizeof got, 999 * LINE_BYTES), LINE_BYTES);
    CHECK_MEM(got, "00000999 ", 9);
    logfd_close(&l);
    close(fd);
    logfd_open(&none, -1);
    CHECK(write_line(&none, 1));
    logfd_close(&none);
}

// The other side is gone: nothing is kept for it, and nobody is killed by a signal.
TEST(a_reader_that_has_gone_takes_its_lines_along) {
    struct logfd l;
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    logfd_open(&l, fds[1]);
    close(fds[0]);
    for (unsigned i = 0; i < 1000; i++) CHECK(write_line(&l, i));
    CHECK_EQ(l.kept.len, 0);
    logfd_close(&l);
    close(fds[1]);
}
