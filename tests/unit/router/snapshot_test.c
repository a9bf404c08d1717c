/* Three buffers between two threads: a reader sees whole snapshots, the newest published, and never waits. */
#include "router/snapshot.h"
#include "tests/lib/test.h"

#include <pthread.h>
#include <stdatomic.h>

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
