/* The metrics page: the text format, one series where gateways want one, and sums that add up. */
#include "common/strbuf.h"
#include "router/backend.h"
#include "router/metrics.h"
#include "router/snapshot.h"
#include "tests/lib/test.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct snapshot shot;

static void write_page(struct metrics *m, struct strbuf *out) {
    strbuf_reset(out);
    metrics_write(m, &shot, -1, 1000, out);
}

// The value behind a series' text, e.g. name{label="x"}.
static double value(const struct strbuf *page, const char *series) {
    size_t n = strlen(series);
    for (const char *p = page->p; (p = strstr(p, series)); p += n)
        if ((p == page->p || p[-1] == '\n') && p[n] == ' ') return strtod(p + n, NULL);
    test_fail(__FILE__, __LINE__, "no series %s", series);
}

static bool is_name(const char *s, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_' && s[i] != ':') return false;
    return len > 0 && !isdigit((unsigned char)s[0]);
}

TEST(every_line_is_a_comment_or_a_series_of_the_family_above) {
    struct metrics *m = metrics_new("a \"name\"\\");
    struct strbuf page = {0};
    shot.worker_count = 2;
    shot.workers[1].rank = 1;
    metrics_unknown_field(m, "frobnicate");
    metrics_http(m, "models", 200, 0.1);
    write_page(m, &page);
    char family[128] = "";
    for (char *line = strtok(page.p, "\n"); line; line = strtok(NULL, "\n")) {
        if (!strncmp(line, "# TYPE ", 7)) {
            CHECK_EQ(sscanf(line + 7, "%127s", family), 1);
            continue;
        }
        if (line[0] == '#') continue;
        size_t n = strcspn(line, "{ ");
        if (!is_name(line, n) || strncmp(line, family, strlen(family)))
            test_fail(__FILE__, __LINE__, "under %s: %s", family, line);
        const char *space = strrchr(line, ' ');
        char *end;
        strtod(space + 1, &end);
        if (*end) test_fail(__FILE__, __LINE__, "no number: %s", line);
    }
    strbuf_fini(&page);
    metrics_free(m);
}

TEST(each_family_has_one_help_and_one_type) {
    struct metrics *m = metrics_new("m");
    struct strbuf page = {0};
    write_page(m, &page);
    for (const char *p = page.p; (p = strstr(p, "# TYPE ")); p += 7) {
        char type[200];
        snprintf(type, sizeof type, "%.*s ", (int)strcspn(p + 7, " "), p + 7);
        char again[220];
        snprintf(again, sizeof again, "# TYPE %s", type);
        if (strstr(p + 7, again)) test_fail(__FILE__, __LINE__, "twice: %s", again);
    }
    strbuf_fini(&page);
    metrics_free(m);
}

TEST(counters_and_histograms_add_up) {
    struct metrics *m = metrics_new("m");
    struct strbuf page = {0};
    metrics_add(m, METRIC_ACCEPTED, 3);
    metrics_in_flight(m, 1);
    metrics_client_closed(m, METRIC_PHASE_PREFILL);
    metrics_error(m, APIERR_QUEUE_FULL);
    metrics_error(m, APIERR_INVALID_JSON);
    metrics_success(m, -1, METRIC_REASON_ABORT);
    metrics_observe(m, METRIC_FIRST_TOKEN_S, 0.003, 1);
    metrics_observe(m, METRIC_FIRST_TOKEN_S, 9999, 2);
    metrics_http(m, "chat_completions", 499, 2);
    metrics_http(m, NULL, 418, 2);
    write_page(m, &page);
    CHECK(value(&page, "railyard_requests_accepted_total") == 3);
    CHECK(value(&page, "railyard_requests_in_flight") == 1);
    CHECK(value(&page, "railyard_client_closed_total{phase=\"prefill\"}") == 1);
    CHECK(value(&page, "railyard_errors_total{code=\"invalid_json\"}") == 1);
    CHECK(value(&page, "railyard_rejected_total{reason=\"queue_full\"}") == 1);
    CHECK(strstr(page.p, "railyard_rejected_total{reason=\"invalid_json\"}") == NULL);
    CHECK(value(&page, "vllm:request_success_total{model_name=\"m\",finished_reason=\"abort\"}") ==
          1);
    CHECK(value(&page, "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.001\"}") ==
          0);
    CHECK(value(&page, "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.005\"}") ==
          1);
    CHECK(value(&page, "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"+Inf\"}") ==
          3);
    CHECK(value(&page, "vllm:time_to_first_token_seconds_count{model_name=\"m\"}") == 3);
    CHECK_NEAR(value(&page, "vllm:time_to_first_token_seconds_sum{model_name=\"m\"}"), 19998.003,
               1e-3);
    CHECK(value(&page,
                "railyard_http_requests_total{endpoint=\"chat_completions\",status=\"499\"}") == 1);
    CHECK(value(&page, "railyard_http_requests_total{endpoint=\"none\",status=\"0\"}") == 1);
    strbuf_fini(&page);
    metrics_free(m);
}

// A client chooses the names of unknown fields: their number is bounded, and none can forge a label.
TEST(unknown_fields_are_counted_by_at_most_64_harmless_names) {
    struct metrics *m = metrics_new("m");
    struct strbuf page = {0};
    char name[80];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "field_%d", i);
        metrics_unknown_field(m, name);
    }
    metrics_unknown_field(m, "field_3");
    metrics_unknown_field(m, "x\"} 1\n");
    memset(name, 'y', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    metrics_unknown_field(m, name);
    write_page(m, &page);
    CHECK(value(&page, "railyard_unknown_fields_total{field=\"field_3\"}") == 2);
    CHECK(value(&page, "railyard_unknown_fields_total{field=\"field_63\"}") == 1);
    CHECK(value(&page, "railyard_unknown_fields_total{field=\"other\"}") == 36 + 2);
    CHECK(strstr(page.p, "x\\\"") == NULL && strstr(page.p, "yyy") == NULL);
    strbuf_fini(&page);
    metrics_free(m);
}

TEST(gateway_gauges_are_summed_over_live_workers) {
    struct metrics *m = metrics_new("m");
    struct strbuf page = {0};
    memset(&shot, 0, sizeof shot);
    shot.worker_count = 3;
    metrics_set_live(m, &(struct metrics_live){6, 5, 3, 50});
    for (uint32_t i = 0; i < 3; i++)
        shot.workers[i] = (struct snapshot_worker){.rank = i,
                                                   .state = i == 2 ? BACKEND_FAILED : BACKEND_READY,
                                                   .streams_running = 2,
                                                   .queue_requests = 1,
                                                   .kv_blocks_total = 10,
                                                   .kv_blocks_used = 5,
                                                   .kv_block_tokens = 16};
    metrics_worker_round(m, 1, 0.02, 7);
    write_page(m, &page);
    CHECK(value(&page, "vllm:num_requests_running{model_name=\"m\"}") == 4);
    CHECK(value(&page, "vllm:num_requests_waiting{model_name=\"m\"}") == 7);
    CHECK(value(&page, "railyard_queue_requests") == 3);
    CHECK(value(&page, "vllm:kv_cache_usage_perc{model_name=\"m\"}") == 0.5);
    CHECK(value(&page, "railyard_worker_state{rank=\"2\",state=\"failed\"}") == 1);
    CHECK(value(&page, "railyard_worker_state{rank=\"2\",state=\"ready\"}") == 0);
    CHECK(value(&page, "railyard_worker_tokens_total{rank=\"1\"}") == 7);
    CHECK(value(&page, "railyard_worker_round_seconds_count{rank=\"1\"}") == 1);
    strbuf_fini(&page);
    metrics_free(m);
}
