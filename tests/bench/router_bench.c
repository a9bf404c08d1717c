/* router_bench: what an SSE event costs the router, how much later it comes, what an open stream weighs. The router has
 * one core, the client and four fake workers (real frames, no engine) the other. Beside each figure stands the floor: a
 * process on the router's core that writes ready-made events of the same size to as many sockets, and nothing else.
 *
 *     router_bench [SECONDS]       of each cell; 5
 *
 * CPU is the scheduler's account of the router's threads, so it holds on a machine with other work; ages do not. */
#include "common/mem.h"
#include "common/mono.h"
#include "common/strbuf.h"
#include "tests/bench/load_client.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    WORKERS = 4,
    STREAMS_MAX = 5000,
    ROUTER_CPU = 0,
    REST_CPU = 1,
    READY_S = 60,
};

static char dir[] = "/tmp/router-bench-XXXXXX";

static void die(const char *what) {
    fprintf(stderr, "router_bench: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set); // with one CPU both share it, and the ages say so
}

/* ---- processes ---- */

static pid_t start(int cpu, char **argv) {
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(cpu);
    char log[128];
    snprintf(log, sizeof log, "%s/log", dir);
    int fd = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execv(argv[0], argv);
    _exit(127);
}

static void stop(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static char *text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static char *text(const char *fmt, ...) {
    va_list ap;
    struct strbuf b = {0};
    va_start(ap, fmt);
    strbuf_vprintf(&b, fmt, ap);
    va_end(ap);
    return strbuf_take(&b);
}

static uint16_t free_port(void) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof sa;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa) ||
        getsockname(fd, (struct sockaddr *)&sa, &len))
        die("a free port");
    close(fd);
    return ntohs(sa.sin_port);
}

static bool has_ready_workers(uint16_t port) {
    char buf[4096], wanted[32];
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    static const char ask[] = "GET /readyz HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n";
    ssize_t n = 0, got;
    if (!connect(fd, (struct sockaddr *)&sa, sizeof sa) && send(fd, ask, sizeof ask - 1, 0) > 0)
        while (n < (ssize_t)sizeof buf - 1 &&
               (got = recv(fd, buf + n, sizeof buf - 1 - (size_t)n, 0)) > 0)
            n += got;
    close(fd);
    buf[n] = '\0';
    snprintf(wanted, sizeof wanted, "\"ready\":%d", WORKERS);
    return strstr(buf, wanted) != NULL;
}

struct setup {
    pid_t router, workers[WORKERS];
    uint16_t port;
};

static void set_up(struct setup *u, uint32_t rounds_per_s) {
    const char *build = getenv("RAILYARD_BUILD"), *source = getenv("RAILYARD_SOURCE");
    if (!build || !source) {
        fprintf(stderr, "router_bench: wanted RAILYARD_BUILD and RAILYARD_SOURCE (meson test "
                        "--benchmark router sets them)\n");
        exit(2);
    }
    u->port = free_port();
    char *router[] = {text("%s/railyard", build),
                      (char[]){"router"},
                      text("%s/tests/models/demo", source),
                      text("--api.listen=127.0.0.1:%u", u->port),
                      (char[]){"--ops.listen="},
                      text("--run.dir=%s", dir),
                      text("--workers=%d", WORKERS),
                      (char[]){"--queue.requests_max=20000"},
                      (char[]){"--log.access=off"},
                      (char[]){"--log.level=warn"},
                      (char[]){"--worker.progress_s=600"},
                      NULL};
    u->router = start(ROUTER_CPU, router);
    char *worker[] = {text("%s/tests/tools/fake_worker", build),
                      text("--lobby=ipc://%s/lobby.sock", dir),
                      text("--streams=%d", STREAMS_MAX / WORKERS),
                      text("--rate=%u", rounds_per_s),
                      (char[]){"--clock"},
                      NULL,
                      NULL};
    for (int i = 0; i < WORKERS; i++) {
        worker[5] = text("--phase=%.3f", (double)i / WORKERS);
        u->workers[i] = start(REST_CPU, worker);
        free(worker[5]);
    }
    uint64_t end = mono_ms() + READY_S * 1000;
    while (!has_ready_workers(u->port)) {
        if (mono_ms() > end) die("the workers did not join");
        usleep(50000);
    }
    for (char **p = router; *p; p++)
        if (p != router + 1 && (p < router + 4 || p == router + 5 || p == router + 6)) free(*p);
    for (int i = 0; i < 4; i++) free(worker[i]);
}

static void tear_down(struct setup *u) {
    stop(u->router);
    for (int i = 0; i < WORKERS; i++) stop(u->workers[i]);
}

/* ---- figures ---- */

// CPU time of all threads of a process, in seconds.
static double cpu_s(pid_t pid) {
    char path[320];
    uint64_t sum = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    struct dirent *t;
    while (d && (t = readdir(d))) {
        uint64_t ns = 0;
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", (int)pid, t->d_name);
        FILE *f = t->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (f && fscanf(f, "%lu", &ns) == 1) sum += ns;
        if (f) fclose(f);
    }
    if (d) closedir(d);
    return (double)sum / 1e9;
}

static double resident_mb(pid_t pid) {
    char path[64];
    long size = 0, resident = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%ld %ld", &size, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

struct cell {
    const char *name;
    bool http2;
    uint32_t streams, per_connection;
    uint32_t rounds_per_s; // events of a stream
};

struct figures {
    double events_per_s, us_per_event, bytes_per_event, p50_us, p99_us, mb;
};

static void wait_all_begun(struct load *l, uint32_t streams) {
    uint64_t end = mono_ms() + READY_S * 1000;
    while (load_begun(l) < streams) {
        load_run(l, 0.1);
        if (mono_ms() > end) die("not every stream has begun");
    }
    load_run(l, 0.5);
}

static void measure(struct load *l, pid_t pid, double seconds, struct figures *ret) {
    double cpu = cpu_s(pid);
    uint64_t begun = mono_us();
    uint64_t events = load_run(l, seconds);
    double wall = (double)(mono_us() - begun) / 1e6;
    *ret = (struct figures){
        .events_per_s = (double)events / wall,
        .us_per_event = events ? (cpu_s(pid) - cpu) * 1e6 / (double)events : 0,
        .bytes_per_event = events ? (double)load_bytes(l) / (double)events : 0,
        .p50_us = load_age_us(l, 0.5),
        .p99_us = load_age_us(l, 0.99),
        .mb = resident_mb(pid),
    };
}

static void routed(const struct cell *c, double seconds, struct figures *ret) {
    struct setup u;
    set_up(&u, c->rounds_per_s);
    struct load *l = load_open(&(struct load_config){.port = u.port,
                                                     .http2 = c->http2,
                                                     .streams = c->streams,
                                                     .per_connection = c->per_connection});
    wait_all_begun(l, c->streams);
    measure(l, u.router, seconds, ret);
    load_close(l);
    tear_down(&u);
}

/* ---- the floor ---- */

// Accepts the streams and writes each an event of so many bytes, as often as the workers do, a quarter at a time as four
// workers would.
static void run_floor(int listener, const struct cell *c, uint32_t bytes) {
    uint32_t streams = c->streams;
    int *fds = mem_calloc(streams, sizeof *fds);
    char *event = mem_calloc(bytes + 64, 1);
    pin(ROUTER_CPU);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint32_t i = 0; i < streams; i++) {
        char drop[512];
        fds[i] = accept(listener, NULL, NULL);
        if (fds[i] < 0 || recv(fds[i], drop, sizeof drop, 0) <= 0) _exit(1);
    }
    memset(event, 'x', bytes);
    uint64_t next = mono_us();
    for (uint64_t round = 0;; round++) {
        int n = snprintf(event, bytes, "data: {\"token_ids\":[%u]", load_tick_id());
        event[n] = 'x';
        memcpy(event + bytes - 2, "\n\n", 2);
        for (uint32_t i = (uint32_t)(round % WORKERS); i < streams; i += WORKERS)
            if (send(fds[i], event, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN)
                _exit(0);
        next += 1000000 / c->rounds_per_s / WORKERS;
        uint64_t now = mono_us();
        if (next > now) usleep((useconds_t)(next - now));
    }
}

static void floor_of(const struct cell *c, double bytes, double seconds, struct figures *ret) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof sa;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa) || listen(fd, 4096) ||
        getsockname(fd, (struct sockaddr *)&sa, &len))
        die("listen");
    pid_t pid = fork();
    if (!pid) run_floor(fd, c, (uint32_t)bytes);
    close(fd);
    struct load *l = load_open(&(struct load_config){
        .port = ntohs(sa.sin_port), .streams = c->streams, .per_connection = 1, .head = "begin\n"});
    wait_all_begun(l, c->streams);
    measure(l, pid, seconds, ret);
    load_close(l);
    stop(pid);
}

static void run_cell(const struct cell *c, double seconds) {
    struct figures r, f;
    routed(c, seconds, &r);
    floor_of(c, r.bytes_per_event, seconds, &f);
    printf("%-9s %5u streams  %8.0f events/s  router %5.2f us/event = %7.0f events/s of a core  "
           "p50 %6.2f ms p99 %6.2f ms  %6.1f MB\n",
           c->name, c->streams, r.events_per_s, r.us_per_event, 1e6 / r.us_per_event,
           r.p50_us / 1e3, r.p99_us / 1e3, r.mb);
    printf("%-9s %5u streams  %8.0f events/s  send   %5.2f us/event = %7.0f events/s of a core  "
           "p50 %6.2f ms p99 %6.2f ms  added p99 %.2f ms  (%.0f bytes)\n",
           "  floor", c->streams, f.events_per_s, f.us_per_event, 1e6 / f.us_per_event,
           f.p50_us / 1e3, f.p99_us / 1e3, (r.p99_us - f.p99_us) / 1e3, r.bytes_per_event);
    fflush(stdout);
}

int main(int argc, char **argv) {
    static const struct cell cells[] = {
        {"http/1.1", false, 1000, 1, 50}, {"h2", true, 1000, 100, 50},
        {"http/1.1", false, 2000, 1, 50}, {"h2", true, 2000, 100, 50},
        {"http/1.1", false, 5000, 1, 10}, {"h2", true, 5000, 100, 10},
    };
    double seconds = argc > 1 ? atof(argv[1]) : 5;
    struct rlimit limit;
    signal(SIGPIPE, SIG_IGN);
    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (!mkdtemp(dir)) die("a folder under /tmp");
    pin(REST_CPU);
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++) run_cell(&cells[i], seconds);
    char *rm = text("rm -rf %s", dir);
    int rc = system(rm);
    free(rm);
    return rc != 0;
}
