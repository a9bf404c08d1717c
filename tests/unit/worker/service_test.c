/* service: what the service manager hears, and above all when it hears nothing. */
#include "common/notify.h"
#include "tests/lib/test.h"
#include "worker/runner.h"
#include "worker/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int manager = -1;
static struct sockaddr_un address = {.sun_family = AF_UNIX};

static void remove_socket(void) {
    unlink(address.sun_path);
}

static void set_up(void) {
    char pid[24];
    if (manager >= 0) return; // notify_init is for once in a process
    snprintf(address.sun_path, sizeof address.sun_path, "/tmp/ry-notify-%d", (int)getpid());
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    CHECK(manager >= 0 && !bind(manager, (struct sockaddr *)&address, sizeof address));
    atexit(remove_socket);
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    setenv("WATCHDOG_USEC", "3000000", 1);
    setenv("WATCHDOG_PID", pid, 1);
    notify_init();
    CHECK(!getenv("NOTIFY_SOCKET") && !getenv("WATCHDOG_USEC")); // children are not the service
}

// All that has come since the last time.
static const char *heard(void) {
    static char text[2048];
    size_t n = 0;
    for (ssize_t got; (got = recv(manager, text + n, sizeof text - n - 2, 0)) > 0;) {
        n += (size_t)got;
        text[n++] = '|';
    }
    text[n] = '\0';
    return text;
}

static struct runner_status loaded(uint32_t streams, uint64_t progress) {
    return (struct runner_status){
        .state = RUNNER_LOADED, .streams_running = streams, .progress = progress, .round_ms = 10};
}

TEST(loading_asks_for_more_time_as_it_goes_on_and_then_it_is_ready_once) {
    set_up();
    struct service v = {0};
    struct runner_status s = {.state = RUNNER_LOADING};
    service_tend(&v, &s, 10, 1000);
    CHECK_HAS(heard(), "EXTEND_TIMEOUT_USEC=");
    s.load_fraction = 0.005; // no per cent yet
    service_tend(&v, &s, 10, 2000);
    CHECK_STR(heard(), "");
    s.load_fraction = 0.5;
    service_tend(&v, &s, 10, 3000);
    CHECK_HAS(heard(), "loading, 50%");
    s = loaded(0, 1);
    service_tend(&v, &s, 10, 4000);
    CHECK_HAS(heard(), "READY=1");
    service_tend(&v, &s, 10, 4001);
    CHECK(!strstr(heard(), "READY=1"));
}

TEST(an_idle_worker_gives_a_sign_of_life_every_third_of_the_limit) {
    set_up();
    struct service v = {0};
    struct runner_status s = loaded(0, 7);
    int beats = 0;
    for (uint64_t now = 1000000; now < 1020000; now += 100) {
        service_tend(&v, &s, 10, now);
        beats += strstr(heard(), "WATCHDOG=1") != NULL;
    }
    CHECK_EQ(notify_watchdog_ms(), 1001);
    CHECK_EQ(beats, 19); // every 1,100 ms of these ticks
}

TEST(with_streams_and_no_progress_there_is_no_sign_of_life_until_it_moves) {
    set_up();
    struct service v = {0};
    struct runner_status s = loaded(3, 7);
    uint64_t now = 5000000, last = 0;
    service_tend(&v, &s, 10, now);
    heard();
    for (uint64_t end = now + 60000; now < end; now += 500) {
        service_tend(&v, &s, 10, now);
        if (strstr(heard(), "WATCHDOG=1")) last = now;
    }
    CHECK(last > 5000000 && last <= 5000000 + 10020); // progress_s and two rounds
    s.progress++;
    service_tend(&v, &s, 10, now);
    CHECK_HAS(heard(), "WATCHDOG=1");
}

// The probe of a pod looks at the file's age.
TEST(the_file_is_renewed_while_it_moves_and_no_longer) {
    set_up();
    char path[64];
    struct stat sb;
    snprintf(path, sizeof path, "/tmp/ry-alive-%d", (int)getpid());
    struct service v = {.alive = path};
    struct runner_status s = {.state = RUNNER_LOADING};
    service_tend(&v, &s, 10, 1000000);
    CHECK(!stat(path, &sb)); // a process that loads is alive
    unlink(path);
    service_tend(&v, &s, 10, 1005000);
    CHECK(stat(path, &sb)); // but not if it does not get on
    s = loaded(2, 5);
    service_tend(&v, &s, 10, 1006000);
    CHECK(!stat(path, &sb));
    unlink(path);
    service_tend(&v, &s, 10, 1012000);
    CHECK(!stat(path, &sb));
    unlink(path);
    service_tend(&v, &s, 10, 1030000);
    CHECK(stat(path, &sb));
    s.progress++;
    service_tend(&v, &s, 10, 1031000);
    CHECK(!stat(path, &sb));
    unlink(path);
    heard();
}
