/* Three buffers between two threads: a reader sees whole snapshots, the newest published, and never waits. */
#include "router/backend.h"
#include "router/snapshot.h"
#include "tests/lib/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

TEST(a_reader_sees_what_was_published_last_and_keeps_it) {
    struct snapshots *s = snapshots_new();
    CHECK_EQ(snapshots_read(s)->ready, 0);
    snapshots_begin(s)->ready = 1;
    CHECK_EQ(snapshots_read(s)->ready, 0); // not published yet
    snapshots_publish(s);
    const struct snapshot *one = snapshots_read(s);
    CHECK_EQ(one->ready, 1);
    for (uint32_t i = 2; i < 10; i++) {
        snapshots_begin(s)->ready = i;
        snapshots_publish(s);
        CHECK_EQ(snapshots_own(s)->ready, i);
        CHECK_EQ(one->ready, 1); // however often the writer goes on
    }
    CHECK_EQ(snapshots_read(s)->ready, 9);
    snapshots_free(s);
}

static _Atomic bool stop;

static void *write_all(void *arg) {
    struct snapshots *s = arg;
    for (uint32_t i = 1; i <= 20000; i++) {
        struct snapshot *b = snapshots_begin(s);
        b->ready = i;
        b->wait_predicted_s = i;
        b->workers[SNAPSHOT_WORKERS_MAX - 1].rounds = i;
        snapshots_publish(s);
    }
    atomic_store(&stop, true);
    return NULL;
}

TEST(no_snapshot_is_torn_and_none_is_older_than_the_one_before) {
    struct snapshots *s = snapshots_new();
    pthread_t thread;
    pthread_create(&thread, NULL, write_all, s);
    uint32_t last = 0;
    bool torn = false, older = false, over = false;
    while (!over) {
        over = atomic_load(&stop);
        const struct snapshot *b = snapshots_read(s);
        torn |= b->wait_predicted_s != b->ready ||
                b->workers[SNAPSHOT_WORKERS_MAX - 1].rounds != b->ready;
        older |= b->ready < last;
        last = b->ready;
    }
    pthread_join(thread, NULL);
    CHECK(!torn);
    CHECK(!older);
    CHECK_EQ(last, 20000);
    snapshots_free(s);
}

static void add(struct snapshot *s, enum backend_state state, const char *fault) {
    struct snapshot_worker *w = &s->workers[s->worker_count];
    w->rank = s->worker_count++;
    w->state = (int)state;
    snprintf(w->fault, sizeof w->fault, "%s", fault);
}

// Each fault once, with all of its workers; one that is back, or that never failed, has none.
TEST(every_worker_that_is_away_is_named_beside_its_fault) {
    static struct snapshot s;
    char text[SNAPSHOT_FAULTS_BYTES], small[20];
    snapshot_fault(&s, SNAPSHOT_CLIENT, text, sizeof text);
    CHECK_STR(text, "");
    add(&s, BACKEND_BACKOFF, "killed by signal 9");
    snapshot_fault(&s, SNAPSHOT_CLIENT, text, sizeof text);
    CHECK_STR(text, "worker 0: killed by signal 9");
    add(&s, BACKEND_FAILED, "its device has failed");
    add(&s, BACKEND_LOADING, "killed by signal 9");
    add(&s, BACKEND_FAILED, "");
    add(&s, BACKEND_BACKOFF, "killed by signal 9");
    snapshot_fault(&s, SNAPSHOT_CLIENT, text, sizeof text);
    CHECK_STR(text, "workers 0, 4: killed by signal 9; worker 1: its device has failed");
    snapshot_fault(&s, SNAPSHOT_CLIENT, small, sizeof small);
    CHECK_STR(small, "workers 0, 4: kille");
    for (uint32_t i = 0; i < s.worker_count; i += 4)
        snprintf(s.workers[i].reason, sizeof s.workers[i].reason, "no '/x'; killed by signal 9");
    snapshot_fault(&s, SNAPSHOT_OPERATOR, text, sizeof text);
    CHECK_STR(text, "workers 0, 4: no '/x'; killed by signal 9; worker 1: its device has failed");
}
