/* metrics_page: the text of /metrics (format 0.0.4). See metrics.h. */
#include "common/mono.h"
#include "common/strbuf.h"
#include "common/version.h"
#include "router/backend.h"
#include "router/metrics_priv.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct page {
    struct metrics *m;
    const struct snapshot *s;
    const struct tally *tally;
    int32_t rank; // -1: all workers
    uint64_t now_ms;
    struct strbuf *out;
};

static void family(struct page *p, const char *name, const char *type, const char *help) {
    strbuf_printf(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void label_text(struct strbuf *out, const char *s) {
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') strbuf_add_char(out, '\\');
        if (*s == '\n')
            strbuf_add_str(out, "\\n");
        else
            strbuf_add_char(out, *s);
    }
}

static void model_label(struct page *p) {
    strbuf_add_str(p->out, "model_name=\"");
    label_text(p->out, p->m->model_name);
    strbuf_add_char(p->out, '"');
}

// One series with the model's label: the families that gateways know.
static void by_model(struct page *p, const char *name, const char *type, const char *help,
                     double x) {
    family(p, name, type, help);
    strbuf_printf(p->out, "%s{", name);
    model_label(p);
    strbuf_printf(p->out, "} %.15g\n", x);
}

static void one(struct page *p, const char *name, const char *type, const char *help, double x) {
    family(p, name, type, help);
    strbuf_printf(p->out, "%s %.15g\n", name, x);
}

// labels: inside the braces and without a comma at the end, or "".
static void series(struct page *p, const struct histogram_form *f, const struct histogram *h,
                   const char *labels) {
    uint64_t total = 0;
    const char *comma = *labels ? "," : "";
    for (size_t i = 0; i < f->bound_count; i++) {
        total += counter_get(&h->buckets[i]);
        strbuf_printf(p->out, "%s_bucket{%s%sle=\"%.15g\"} %" PRIu64 "\n", f->name, labels, comma,
                      f->bounds[i], total);
    }
    total += counter_get(&h->buckets[f->bound_count]);
    strbuf_printf(p->out, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", f->name, labels, comma,
                  total);
    strbuf_printf(p->out, "%s_sum{%s} %.15g\n", f->name, labels,
                  (double)counter_get(&h->sum) * f->unit);
    strbuf_printf(p->out, "%s_count{%s} %" PRIu64 "\n", f->name, labels, total);
}

// gateways: those that gateways know, else our own.
static void histograms(struct page *p, bool gateways) {
    struct strbuf labels = {0};
    struct strbuf *page = p->out;
    p->out = &labels;
    model_label(p);
    p->out = page;
    for (size_t i = 0; i < METRIC_HISTOGRAM_COUNT; i++) {
        const struct histogram_form *f = &histogram_forms[i];
        if (!strncmp(f->name, "vllm:", 5) != gateways) continue;
        family(p, f->name, "histogram", f->help);
        series(p, f, &p->tally->histograms[i], gateways ? labels.p : "");
    }
    strbuf_fini(&labels);
}

static bool is_asked(const struct page *p, const struct snapshot_worker *w) {
    return p->rank < 0 || w->rank == (uint32_t)p->rank;
}

static bool is_live(const struct snapshot_worker *w) {
    return w->state == BACKEND_READY || w->state == BACKEND_DRAINING;
}

static void gateway_gauges(struct page *p) {
    uint64_t blocks = 0, used = 0, in_workers = 0, sent = 0, pinned = 0;
    uint32_t block_tokens = 0;
    for (uint32_t i = 0; i < p->s->worker_count; i++) {
        const struct snapshot_worker *w = &p->s->workers[i];
        if (!is_asked(p, w)) continue;
        pinned += w->pinned;
        if (!is_live(w)) continue;
        sent += w->streams_sent;
        in_workers += w->queue_requests;
        blocks += w->kv_blocks_total;
        used += w->kv_blocks_used;
        if (w->kv_block_tokens) block_tokens = w->kv_block_tokens;
    }
    // A worker tells of its queue a little later than this loop knows of its streams.
    bool all = p->rank < 0;
    uint64_t live = all ? (uint64_t)gauge_get(&p->m->live_streams) : sent;
    uint64_t queued = all ? (uint64_t)gauge_get(&p->m->queued_choices) : pinned;
    uint64_t running = live > in_workers ? live - in_workers : 0;
    by_model(p, "vllm:num_requests_running", "gauge", "Streams in rounds or filling",
             (double)running);
    by_model(p, "vllm:num_requests_waiting", "gauge", "Waiting in router and workers",
             (double)queued + (double)(live - running));
    by_model(p, "vllm:kv_cache_usage_perc", "gauge", "Used KV blocks, 0 to 1",
             blocks ? (double)used / (double)blocks : 0);
    family(p, "vllm:cache_config_info", "gauge", "KV blocks");
    strbuf_add_str(p->out, "vllm:cache_config_info{");
    model_label(p);
    strbuf_printf(p->out, ",block_size=\"%u\",num_gpu_blocks=\"%" PRIu64 "\"} 1\n", block_tokens,
                  blocks);
    family(p, "vllm:lora_requests_info", "gauge", "Adapters: none; the value is the time");
    strbuf_printf(p->out,
                  "vllm:lora_requests_info{max_lora=\"0\",running_lora_adapters=\"\","
                  "waiting_lora_adapters=\"\"} %lld\n",
                  (long long)time(NULL));
}

static double counted(struct page *p, enum metric which) {
    return (double)counter_get(&p->tally->counters[which]);
}

static void gateway_counters(struct page *p) {
    by_model(p, "vllm:prompt_tokens_total", "counter", "Prompt tokens",
             counted(p, METRIC_PROMPT_TOKENS));
    by_model(p, "vllm:generation_tokens_total", "counter", "Generated tokens",
             counted(p, METRIC_GENERATION_TOKENS));
    by_model(p, "vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up",
             counted(p, METRIC_PREFIX_QUERIES));
    by_model(p, "vllm:prefix_cache_hits_total", "counter", "Prompt tokens found",
             counted(p, METRIC_PREFIX_HITS));
    by_model(p, "vllm:num_preemptions_total", "counter", "None: what is admitted stays", 0);
    by_model(p, "vllm:spec_decode_num_drafts_total", "counter",
             "Rounds of streams that checked drafts", counted(p, METRIC_DRAFTS));
    by_model(p, "vllm:spec_decode_num_draft_tokens_total", "counter", "Drafted tokens",
             counted(p, METRIC_DRAFTED));
    by_model(p, "vllm:spec_decode_num_accepted_tokens_total", "counter", "Accepted tokens",
             counted(p, METRIC_DRAFTS_ACCEPTED));
    static const char *const reasons[] = {"stop", "length", "abort", "error"};
    family(p, "vllm:request_success_total", "counter", "Requests by the way they ended");
    for (size_t i = 0; i < METRIC_REASON_COUNT; i++) {
        strbuf_add_str(p->out, "vllm:request_success_total{");
        model_label(p);
        strbuf_printf(p->out, ",finished_reason=\"%s\"} %" PRIu64 "\n", reasons[i],
                      counter_get(&p->tally->success[i]));
    }
}

static void requests(struct page *p) {
    one(p, "railyard_requests_accepted_total", "counter", "Requests that entered the queue",
        counted(p, METRIC_ACCEPTED));
    one(p, "railyard_requests_finished_total", "counter", "Requests answered in full",
        counted(p, METRIC_FINISHED));
    one(p, "railyard_requests_failed_total", "counter", "Accepted requests that ended in an error",
        counted(p, METRIC_FAILED));
    one(p, "railyard_requests_cancelled_total", "counter", "Accepted requests whose client left",
        counted(p, METRIC_CANCELLED));
    one(p, "railyard_requests_in_flight", "gauge", "Accepted requests that are not over",
        (double)metrics_get_in_flight(p->m));
    one(p, "railyard_streams_open", "gauge", "Replies being streamed",
        (double)gauge_get(&p->m->streams_open));
    one(p, "railyard_queue_requests", "gauge", "Requests waiting in the router",
        (double)gauge_get(&p->m->queued_requests));
    one(p, "railyard_queue_tokens", "gauge", "Their prompt tokens",
        (double)gauge_get(&p->m->queued_tokens));
    one(p, "railyard_queue_wait_seconds_predicted", "gauge", "Wait of a request that came now",
        p->s->wait_predicted_s);
    one(p, "railyard_lone_surrogates_total", "counter", "Escaped lone surrogates made U+FFFD",
        counted(p, METRIC_LONE_SURROGATES));
    one(p, "railyard_invalid_utf8_total", "counter", "Bodies refused for bad UTF-8",
        counted(p, METRIC_INVALID_UTF8));
    family(p, "railyard_placement_total", "counter", "Requests sent to workers, by reason");
    strbuf_printf(p->out,
                  "railyard_placement_total{reason=\"load\"} %.15g\n"
                  "railyard_placement_total{reason=\"affinity\"} %.15g\n"
                  "railyard_placement_total{reason=\"pinned\"} %.15g\n",
                  counted(p, METRIC_PLACED_LOAD), counted(p, METRIC_PLACED_AFFINITY),
                  counted(p, METRIC_PLACED_PINNED));
    static const char *const results[] = {"ok", "no_worker", "poisoned"};
    static const char *const causes[] = {"death", "move"};
    family(p, "railyard_resumes_total", "counter", "Requests whose worker was lost, by what came");
    for (size_t i = 0; i < METRIC_RESUME_COUNT; i++)
        for (size_t k = 0; k < METRIC_CAUSE_COUNT; k++)
            strbuf_printf(p->out,
                          "railyard_resumes_total{result=\"%s\",cause=\"%s\"} %" PRIu64 "\n",
                          results[i], causes[k], counter_get(&p->m->resumes[i][k]));
    static const char *const phases[] = {"queue", "prefill", "decode", "resume"};
    family(p, "railyard_client_closed_total", "counter", "Clients that left, by phase");
    for (size_t i = 0; i < METRIC_PHASE_COUNT; i++)
        strbuf_printf(p->out, "railyard_client_closed_total{phase=\"%s\"} %" PRIu64 "\n", phases[i],
                      counter_get(&p->m->client_closed[i]));
}

static void by_code(struct page *p, const char *name, const char *help, const char *label,
                    bool rejections_only) {
    family(p, name, "counter", help);
    for (int c = 1; c < APIERR_CODE_COUNT; c++) {
        bool rejection = c == APIERR_QUEUE_FULL || c == APIERR_QUEUE_TIMEOUT ||
                         c == APIERR_NO_READY_WORKER || c == APIERR_DRAINING ||
                         c == APIERR_OVERLOADED;
        // Two codes may share a name; bad heads are counted with the one they share it with.
        if (c == APIERR_BAD_REQUEST || (rejections_only && !rejection)) continue;
        uint64_t n = counter_get(&p->m->errors[c]);
        if (c == APIERR_INVALID_VALUE) n += counter_get(&p->m->errors[APIERR_BAD_REQUEST]);
        strbuf_printf(p->out, "%s{%s=\"%s\"} %" PRIu64 "\n", name, label,
                      apierr_name((enum apierr_code)c), n);
    }
}

static void http(struct page *p) {
    family(p, "railyard_http_connections", "gauge", "Open connections");
    for (int i = 0; i < 2; i++)
        strbuf_printf(p->out, "railyard_http_connections{protocol=\"%s\"} %" PRId64 "\n",
                      i ? "h2" : "http1", gauge_get(&p->m->connections[i]));
    family(p, "railyard_http_requests_total", "counter", "Requests by endpoint and status");
    for (size_t e = 0; e < METRIC_ENDPOINTS; e++) {
        for (size_t s = 0; s < METRIC_STATUSES; s++) {
            uint64_t n = counter_get(&p->m->http[e][s]);
            if (n)
                strbuf_printf(p->out,
                              "railyard_http_requests_total{endpoint=\"%s\",status=\"%d\"} %" PRIu64
                              "\n",
                              metric_endpoints[e], metric_statuses[s], n);
        }
    }
    family(p, http_seconds_form.name, "histogram", http_seconds_form.help);
    for (size_t e = 0; e < METRIC_ENDPOINTS; e++) {
        char labels[64];
        snprintf(labels, sizeof labels, "endpoint=\"%s\"", metric_endpoints[e]);
        series(p, &http_seconds_form, &p->m->http_seconds[e], labels);
    }
}

static void unknown_fields(struct page *p) {
    family(p, "railyard_unknown_fields_total", "counter", "Request fields that nobody knows");
    pthread_mutex_lock(&p->m->names_lock);
    for (size_t i = 0; i < p->m->unknown_count; i++)
        strbuf_printf(p->out, "railyard_unknown_fields_total{field=\"%s\"} %" PRIu64 "\n",
                      p->m->unknown[i].name, p->m->unknown[i].count);
    uint64_t other = p->m->unknown_other;
    pthread_mutex_unlock(&p->m->names_lock);
    strbuf_printf(p->out, "railyard_unknown_fields_total{field=\"other\"} %" PRIu64 "\n", other);
}

static void key_tokens(struct page *p) {
    family(p, "railyard_key_tokens_total", "counter", "Tokens by the client's key");
    pthread_mutex_lock(&p->m->names_lock);
    for (size_t i = 0; i < p->m->key_count; i++) {
        const struct metric_key *k = &p->m->keys[i];
        strbuf_printf(p->out,
                      "railyard_key_tokens_total{key=\"%s\",kind=\"prompt\"} %" PRIu64
                      "\nrailyard_key_tokens_total{key=\"%s\",kind=\"generation\"} %" PRIu64 "\n",
                      k->name, k->prompt, k->name, k->generated);
    }
    pthread_mutex_unlock(&p->m->names_lock);
}

static double running(const struct snapshot_worker *w, uint64_t now) {
    return w->streams_running;
}
static double waiting(const struct snapshot_worker *w, uint64_t now) {
    return w->queue_requests;
}
static double queue_tokens(const struct snapshot_worker *w, uint64_t now) {
    return (double)w->queue_tokens;
}
static double blocks_used(const struct snapshot_worker *w, uint64_t now) {
    return w->kv_blocks_used;
}
static double blocks_total(const struct snapshot_worker *w, uint64_t now) {
    return w->kv_blocks_total;
}
static double streams_max(const struct snapshot_worker *w, uint64_t now) {
    return w->streams_max;
}
static double kept(const struct snapshot_worker *w, uint64_t now) {
    return (double)w->kept_prefix_tokens;
}
static double fill_rate(const struct snapshot_worker *w, uint64_t now) {
    return w->fill_tokens_per_s;
}
static double progress_age(const struct snapshot_worker *w, uint64_t now) {
    return w->last_progress_ms ? (double)mono_since(w->last_progress_ms, now) / 1e3 : 0;
}
static double restarts(const struct snapshot_worker *w, uint64_t now) {
    return (double)w->restarts;
}

static const struct {
    const char *name, *type, *help;
    double (*value)(const struct snapshot_worker *w, uint64_t now_ms);
} worker_families[] = {
    {"railyard_worker_requests_running", "gauge", "Streams in rounds or filling", running},
    {"railyard_worker_requests_waiting", "gauge", "Requests waiting in the worker", waiting},
    {"railyard_worker_queue_tokens", "gauge", "Prompt tokens waiting in the worker", queue_tokens},
    {"railyard_worker_kv_blocks_used", "gauge", "KV blocks in use", blocks_used},
    {"railyard_worker_kv_blocks_total", "gauge", "KV blocks", blocks_total},
    {"railyard_worker_streams_max", "gauge", "Streams that fit", streams_max},
    {"railyard_worker_kept_prefix_tokens", "gauge", "Tokens of kept prefixes", kept},
    {"railyard_worker_fill_tokens_per_second", "gauge", "Measured fill rate", fill_rate},
    {"railyard_worker_last_progress_seconds", "gauge", "Since the last progress", progress_age},
    {"railyard_worker_restarts_total", "counter", "Starts after the first", restarts},
};

static void worker_counter(struct page *p, const char *name, const char *help, const counter *first,
                           size_t stride) {
    family(p, name, "counter", help);
    for (uint32_t i = 0; i < p->s->worker_count; i++) {
        uint32_t rank = p->s->workers[i].rank;
        if (!is_asked(p, &p->s->workers[i])) continue;
        const counter *c = (const counter *)(const void *)((const char *)first + rank * stride);
        strbuf_printf(p->out, "%s{rank=\"%u\"} %" PRIu64 "\n", name, rank, counter_get(c));
    }
}

// The frames have a place for trees of drafts, which no worker makes: a series of their own would never move.
static bool is_listed(const counter *by_kind, uint32_t k) {
    return strcmp(frame_draft_kind(k), "tree") || counter_get(&by_kind[k]);
}

static void worker_kinds(struct page *p, const char *name, const char *help, bool accepted) {
    family(p, name, "counter", help);
    for (uint32_t i = 0; i < p->s->worker_count; i++)
        for (uint32_t k = 0; k < FRAME_DRAFT_KINDS && is_asked(p, &p->s->workers[i]); k++) {
            uint32_t rank = p->s->workers[i].rank;
            const counter *c =
                accepted ? p->m->worker_counts[rank].accepted : p->m->worker_counts[rank].drafted;
            if (is_listed(c, k))
                strbuf_printf(p->out, "%s{rank=\"%u\",kind=\"%s\"} %" PRIu64 "\n", name, rank,
                              frame_draft_kind(k), counter_get(&c[k]));
        }
}

static void worker_failures(struct page *p) {
    family(p, "railyard_worker_failures_total", "counter", "Workers that ended unasked, by why");
    for (uint32_t i = 0; i < p->s->worker_count; i++)
        for (int why = 0; why < BACKEND_FAILURE_COUNT && is_asked(p, &p->s->workers[i]); why++)
            strbuf_printf(p->out,
                          "railyard_worker_failures_total{rank=\"%u\",reason=\"%s\"} %" PRIu64 "\n",
                          p->s->workers[i].rank, backend_failure_name((enum backend_failure)why),
                          counter_get(&p->m->worker_failures[p->s->workers[i].rank][why]));
}

static void worker_counters(struct page *p) {
    size_t stride = sizeof p->m->worker_counts[0];
    worker_failures(p);
    worker_counter(p, "railyard_worker_rounds_total", "Rounds", &p->m->worker_counts[0].rounds,
                   stride);
    worker_counter(p, "railyard_worker_tokens_total", "Generated tokens",
                   &p->m->worker_counts[0].tokens, stride);
    worker_counter(p, "railyard_worker_prompt_tokens_total", "Filled prompt tokens",
                   &p->m->worker_counts[0].prompt_tokens, stride);
    worker_kinds(p, "railyard_worker_drafted_total", "Drafted tokens of ended streams", false);
    worker_kinds(p, "railyard_worker_accepted_total", "Those of them that were kept", true);
}

static void workers(struct page *p) {
    family(p, "railyard_worker_state", "gauge", "1 for the state a worker is in");
    for (uint32_t i = 0; i < p->s->worker_count; i++)
        for (int state = 0; state < BACKEND_STATE_COUNT && is_asked(p, &p->s->workers[i]); state++)
            strbuf_printf(p->out, "railyard_worker_state{rank=\"%u\",state=\"%s\"} %d\n",
                          p->s->workers[i].rank, backend_state_name((enum backend_state)state),
                          p->s->workers[i].state == state);
    for (size_t f = 0; f < sizeof worker_families / sizeof *worker_families; f++) {
        family(p, worker_families[f].name, worker_families[f].type, worker_families[f].help);
        for (uint32_t i = 0; i < p->s->worker_count; i++)
            if (is_asked(p, &p->s->workers[i]))
                strbuf_printf(p->out, "%s{rank=\"%u\"} %.15g\n", worker_families[f].name,
                              p->s->workers[i].rank,
                              worker_families[f].value(&p->s->workers[i], p->now_ms));
    }
    worker_counters(p);
    family(p, worker_round_form.name, "histogram", worker_round_form.help);
    for (uint32_t i = 0; i < p->s->worker_count; i++) {
        char labels[32];
        if (!is_asked(p, &p->s->workers[i])) continue;
        snprintf(labels, sizeof labels, "rank=\"%u\"", p->s->workers[i].rank);
        series(p, &worker_round_form, &p->m->worker_rounds[i], labels);
    }
}

static double resident_bytes(void) {
    FILE *f = fopen("/proc/self/statm", "re");
    long size = 0, resident = 0;
    if (f && fscanf(f, "%ld %ld", &size, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static double open_fds(void) {
    DIR *d = opendir("/proc/self/fd");
    if (!d) return 0;
    double n = -3; // ".", ".." and this one
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void process(struct page *p) {
    struct rusage u = {0};
    getrusage(RUSAGE_SELF, &u);
    double cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                 (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    family(p, "railyard_build_info", "gauge", "What this build is");
    strbuf_printf(p->out, "railyard_build_info{version=\"%s\",commit=\"%s\"} 1\n", version_string(),
                  version_commit());
    one(p, "railyard_process_resident_bytes", "gauge", "Resident memory", resident_bytes());
    one(p, "railyard_process_open_fds", "gauge", "Open descriptors", open_fds());
    one(p, "railyard_process_cpu_seconds_total", "counter", "CPU time", cpu);
}

void metrics_write(struct metrics *m, const struct snapshot *s, int32_t rank, uint64_t now_ms,
                   struct strbuf *out) {
    static const struct tally none;
    const struct tally *tally = rank < 0 ? &m->all : rank < METRIC_RANKS ? &m->ranks[rank] : &none;
    struct page p = {m, s, tally, rank, now_ms, out};
    strbuf_reserve(out, 32 << 10);
    gateway_gauges(&p);
    gateway_counters(&p);
    histograms(&p, true);
    workers(&p);
    if (rank >= 0) return;
    histograms(&p, false);
    requests(&p);
    by_code(&p, "railyard_errors_total", "Error replies by code", "code", false);
    by_code(&p, "railyard_rejected_total", "Requests turned away by admission", "reason", true);
    http(&p);
    unknown_fields(&p);
    key_tokens(&p);
    process(&p);
}
