/* resume: what a request that lost its worker may do next. */
#include "tests/lib/test.h"

#include "router/resume.h"

#include <string.h>

static const char kind_a[FINGERPRINT_DIGEST_BYTES] = "aa", kind_b[FINGERPRINT_DIGEST_BYTES] = "bb";

TEST(before_its_first_id_any_worker_will_do_and_then_only_its_kind) {
    struct resume r = {0};
    CHECK(resume_fits(&r, kind_a) && resume_fits(&r, kind_b));
    CHECK_EQ_U64(resume_moved(&r, kind_a, 5), 0);
    CHECK(resume_fits(&r, kind_a) && !resume_fits(&r, kind_b));
    resume_lost(&r, METRIC_CAUSE_MOVE, 9000);
    CHECK(!resume_fits(&r, kind_b));
    CHECK_EQ_U64(resume_moved(&r, kind_a, 9500), 500);
    CHECK(resume_fits(&r, kind_a) && !resume_fits(&r, kind_b));
}

TEST(the_pause_runs_from_the_first_loss_and_the_deadline_from_the_last) {
    struct resume r = {0};
    CHECK(!resume_waits(&r));
    resume_lost(&r, METRIC_CAUSE_DEATH, 2000000);
    resume_lost(&r, METRIC_CAUSE_MOVE, 5000000);
    CHECK_EQ_U64(r.since_ms, 5000);
    CHECK(resume_waits(&r));
    CHECK_EQ_U64(resume_moved(&r, kind_a, 6000000), 4000000);
    CHECK(!resume_waits(&r));
    CHECK_EQ(r.times, 1);
    CHECK_EQ_U64(resume_moved(&r, kind_a, 7000000), 0);
    CHECK_EQ(r.times, 1);
}

TEST(a_death_counts_once_for_all_the_choices_it_took) {
    struct resume_deaths d = {0};
    for (int i = 0; i < 5; i++) CHECK(resume_met(&d, 0));
    CHECK_EQ(d.count, 1);
    CHECK(!resume_met(&d, (uint64_t)1 << 32));
    CHECK_EQ(d.count, 2);
}
