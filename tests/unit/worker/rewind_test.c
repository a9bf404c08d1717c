/* What every draft rests on: a round that feeds windows of ids, some with a branch beside them, of which any part is kept and the
 * rest wound back, leaves each stream as if it had taken the kept rows one by one. Random patterns over models of every kind, compared on the bits of
 * the logits; the comparison must fail with a planted fault. */
#include "common/err.h"
#include "common/mem.h"
#include "common/num.h"
#include "tests/lib/draft_doubles.h"
#include "tests/lib/engine_drive.h"
#include "tests/lib/sanitized.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Of all kinds together. Under ThreadSanitizer the subjects are most of the time, and the kinds differ in nothing of threads.
enum { PATTERNS = UNDER_TSAN ? 100 : UNDER_ASAN ? 500 : 10000 };

static const struct {
    const char *name, *args;
} kinds[] = {
    {"dense plain", ""},         {"dense sharp", "--sharp --nv 6 --heads 4 --kv-heads 2"},
    {"dense EXL3", TINY_EXL3},   {"MoE plain", "--moe mixed --experts 7 --top-k 2"},
    {"MoE EXL3", TINY_EXL3_MOE},
};
enum {
    KINDS = sizeof kinds / sizeof *kinds,
    PLANTED = UNDER_TSAN ? 1 : KINDS,
    STREAMS = 4,
    GROUPS = UNDER_TSAN ? 1 : 3,
    PROMPT_MAX = 90,
    TOKENS = 48,
    IDS = PROMPT_MAX + TOKENS,
    USUAL_ROWS = 8, // of most windows
};

struct subject { // a request and what serial decoding makes of it
    uint32_t ids[IDS];
    uint32_t prompt_count;
    struct engine_request request;
    struct reply serial;
    float *logits; // [prompt_count + serial.count, vocab]
};

struct counts {
    uint32_t rounds, patterns, rows, noise_checked, walks;
    uint32_t kept[ENGINE_WINDOW_ROWS_MAX + 1], wound_back[ENGINE_WINDOW_ROWS_MAX + 1];
    uint32_t streams[STREAMS + 1]; // rounds by how many streams had a window
    uint32_t all_kept, beside;     // patterns: nothing wound back; in a round with others
    uint32_t branches, branches_kept,
        branches_crossing; // with a branch; of which it was kept; into the next page
    uint32_t wrong;
};

struct walk { // streams moved by rounds of windows and, in between, by plain rounds
    struct drive d;
    struct reply replies[STREAMS];
    const struct subject *subjects; // [STREAMS]
    uint64_t handles[STREAMS], random;
    uint32_t done[STREAMS]; // generated ids each stream has
    uint32_t vocab;
    struct counts *n;
    bool quiet, over;
};

static uint32_t draw(struct walk *w, uint32_t below) {
    w->random += 0x9e3779b97f4a7c15u;
    return (uint32_t)(mix_u64(w->random) % below);
}

static void wrong(struct walk *w, const char *what, uint32_t stream) {
    if (!w->quiet) test_note("%s: stream %u after %u ids", what, stream, w->done[stream]);
    w->n->wrong++;
    w->over = true;
}

struct path { // a window, or its branch
    const uint32_t *ids;
    uint32_t count, keep;
    const float *logits;
};

static void check_noise(struct walk *w, uint32_t stream, const struct path *p) {
    const struct subject *s = &w->subjects[stream];
    uint32_t first = s->prompt_count + w->done[stream] - 1, row = first + p->count - 1, all[IDS];
    size_t bytes = w->vocab * sizeof *p->logits;
    float *fresh = mem_alloc(bytes);
    struct err e = {0};
    memcpy(all, s->ids, first * sizeof *all);
    memcpy(all + first, p->ids, p->count * sizeof *all);
    CHECK_OK(engine_logits(w->d.eng, all, row + 1, 0, &row, 1, fresh, &e), e);
    if (memcmp(p->logits + (size_t)(p->count - 1) * w->vocab, fresh, bytes))
        wrong(w, "a row behind noise", stream);
    w->n->noise_checked++;
    free(fresh);
}

// Rows whose own and earlier ids are true must have the serial logits; the last one, whatever it was fed, now and then, those
// of a fresh stream with the same ids.
static void check_path(struct walk *w, uint32_t stream, const struct path *p) {
    const struct subject *s = &w->subjects[stream];
    uint32_t first = s->prompt_count + w->done[stream] - 1;
    uint32_t true_rows = p->keep ? p->keep : 1;
    if (memcmp(p->logits, s->logits + (size_t)first * w->vocab,
               (size_t)true_rows * w->vocab * sizeof *p->logits))
        wrong(w, "a true row of a window", stream);
    if (!draw(w, PATTERNS > 1000 ? 16 : 4)) check_noise(w, stream, p);
}

static void check_window(struct walk *w, uint32_t stream, const struct engine_window *v) {
    check_path(w, stream, &(struct path){v->ids, v->count, v->branch_kept ? 0 : v->keep, v->ret});
    if (v->branch_count && !w->over)
        check_path(w, stream,
                   &(struct path){v->branch, v->branch_count, v->branch_kept ? v->keep : 0,
                                  v->branch_ret});
}

// The first `keep` ids are what serial decoding draws and the others noise.
static void make_ids(struct walk *w, uint32_t stream, uint32_t *ids, uint32_t count,
                     uint32_t keep) {
    const struct subject *s = &w->subjects[stream];
    for (uint32_t i = 0; i < count; i++)
        ids[i] = i == 0 || i < keep ? s->ids[s->prompt_count + w->done[stream] - 1 + i]
                                    : draw(w, w->vocab);
}

// Two windows in three have a branch where there is room for one; either may be the one that is kept, and the other be true as far.
static void plan_branch(struct walk *w, uint32_t stream, uint32_t left, struct engine_window *v,
                        uint32_t *ids) {
    if (!left || draw(w, 3) == 0) return;
    v->branch = ids;
    v->branch_count = 1 + draw(w, min_u32(left, USUAL_ROWS));
    v->branch_kept = draw(w, 2);
    make_ids(w, stream, ids, v->branch_count, draw(w, 2));
    if (!v->branch_kept) return;
    make_ids(w, stream, ids - v->count, v->count, draw(w, 4) ? 0 : v->keep);
    v->keep = draw(w, v->branch_count + 1);
    make_ids(w, stream, ids, v->branch_count, v->keep);
}

// The last id of a reply is left to a plain round, so that every state is looked at again.
static bool plan_window(struct walk *w, uint32_t stream, uint32_t rows_left, uint32_t *ids,
                        struct engine_window *ret) {
    const struct subject *s = &w->subjects[stream];
    uint32_t room = s->serial.count - w->done[stream] - 1, left = min_u32(rows_left, room);
    if (w->replies[stream].ended || !left) return false;
    uint32_t n = 1 + draw(w, min_u32(left, draw(w, 6) ? USUAL_ROWS : ENGINE_WINDOW_ROWS_MAX));
    uint32_t keep = draw(w, n + 1);
    make_ids(w, stream, ids, n, keep);
    *ret =
        (struct engine_window){.handle = w->handles[stream], .ids = ids, .count = n, .keep = keep};
    plan_branch(w, stream, min_u32(rows_left - n, room), ret, ids + n);
    return true;
}

static void count_window(struct walk *w, uint32_t stream, const struct engine_window *v,
                         uint32_t count) {
    struct counts *n = w->n;
    uint32_t first = w->subjects[stream].prompt_count + w->done[stream] - 1;
    n->patterns++;
    n->rows += v->count + v->branch_count;
    n->kept[v->keep]++;
    n->wound_back[(v->branch_kept ? v->branch_count : v->count) - v->keep]++;
    n->all_kept += v->keep == (v->branch_kept ? v->branch_count : v->count);
    n->beside += count > 1;
    n->branches += v->branch_count > 0;
    n->branches_kept += v->branch_kept && v->keep;
    n->branches_crossing += v->branch_kept && v->keep && first / 64 != (first + v->keep - 1) / 64;
}

// A window of any of the streams; false where none has room for one.
static bool window_round(struct walk *w) {
    uint32_t ids[ENGINE_WINDOW_ROWS_MAX], used = 0, count = 0, of[STREAMS];
    struct engine_window v[STREAMS];
    struct err e = {0};
    for (uint32_t i = 0; i < STREAMS; i++) {
        if (draw(w, 3) == 0) continue;
        if (!plan_window(w, i, ENGINE_WINDOW_ROWS_MAX - used, ids + used, &v[count])) continue;
        of[count] = i;
        used += v[count].count + v[count].branch_count;
        count++;
    }
    if (!count) return false;
    float *logits = draw(w, 2) ? mem_alloc((size_t)used * w->vocab * sizeof *logits) : NULL;
    for (uint32_t i = 0; i < count && logits; i++) {
        v[i].ret = logits + (size_t)(v[i].ids - ids) * w->vocab;
        if (v[i].branch_count) v[i].branch_ret = logits + (size_t)(v[i].branch - ids) * w->vocab;
    }
    if (engine_windows(w->d.eng, v, count, &e)) wrong(w, e.msg, of[0]);
    for (uint32_t i = 0; i < count && !w->over; i++) {
        if (logits) check_window(w, of[i], &v[i]);
        count_window(w, of[i], &v[i], count);
        w->done[of[i]] += v[i].keep;
    }
    w->n->rounds++;
    w->n->streams[count]++;
    free(logits);
    return true;
}

static void plain_round(struct walk *w) {
    drive_step(&w->d);
    for (uint32_t i = 0; i < STREAMS; i++) w->done[i] = w->replies[i].completion_count;
}

static bool same(const struct reply *a, const struct reply *b) {
    return a->ended && a->count == b->count && a->hash == b->hash &&
           !memcmp(a->ids, b->ids, a->count * sizeof *a->ids);
}

static void walk_once(struct walk *w, struct engine *eng) {
    w->d = (struct drive){.eng = eng, .replies = w->replies, .replies_count = STREAMS};
    w->over = false;
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct engine_request r = w->subjects[i].request;
        r.tag = i;
        w->handles[i] = drive_submit(&w->d, &r);
    }
    for (uint32_t i = 0; i < STREAMS; i++)
        while (!w->replies[i].count) plain_round(w);
    while (!w->over && !engine_idle(eng))
        if (draw(w, 4) == 0 || !window_round(w)) plain_round(w);
    for (uint32_t i = 0; i < STREAMS && w->over; i++) engine_cancel(eng, w->handles[i]);
    for (uint32_t i = 0; i < STREAMS && !w->over; i++)
        if (!same(&w->replies[i], &w->subjects[i].serial)) wrong(w, "a reply", i);
    w->n->walks++;
}

static void make_subject(struct subject *s, struct engine *eng, uint32_t salt) {
    uint32_t vocab = engine_info(eng)->vocab_size, rows[IDS];
    struct err e = {0};
    s->prompt_count = salt % 4 == 0 ? 1 + salt : 1 + (uint32_t)(mix_u64(salt) % PROMPT_MAX);
    s->request = drive_request(s->ids, s->prompt_count, salt, vocab, TOKENS - salt % 5);
    if (salt % 2) drive_sampled(&s->request, salt);
    drive_alone(eng, &s->request, &s->serial);
    uint32_t total = s->prompt_count + s->serial.count;
    memcpy(s->ids + s->prompt_count, s->serial.ids, s->serial.count * sizeof *s->ids);
    for (uint32_t i = 0; i < total; i++) rows[i] = i;
    s->logits = mem_alloc((size_t)total * vocab * sizeof *s->logits);
    CHECK_OK(engine_logits(eng, s->ids, total, 0, rows, total, s->logits, &e), e);
}

// Walks until there were so many patterns.
static void walk_kind(struct counts *n, uint32_t kind, uint32_t patterns, uint32_t fault) {
    static struct subject subjects[GROUPS * STREAMS];
    static struct walk w;
    static struct draft_double
        d; // never asked: it is there for branches, which stand beside blocks
    struct drafter own = double_drafter(&d, DOUBLE_LIES, 1);
    struct engine_config config = {.model_dir = tiny_model(kinds[kind].args),
                                   .drafter = "auto",
                                   .own_drafter = &own,
                                   .threads = UNDER_TSAN ? 2 + kind % 2 : 1 + kind % 3,
                                   .chunk_tokens = 32,
                                   .context_max = 256,
                                   .streams_max = STREAMS + 1,
                                   .fault = fault};
    struct engine *eng = drive_open(&config);
    for (uint32_t i = 0; i < GROUPS * STREAMS; i++) make_subject(&subjects[i], eng, i);
    w = (struct walk){.vocab = engine_info(eng)->vocab_size, .n = n, .quiet = fault != 0};
    w.random = 1000 + kind;
    while (n->patterns < patterns && !n->wrong) {
        w.subjects = &subjects[n->walks % GROUPS * STREAMS];
        walk_once(&w, eng);
    }
    for (uint32_t i = 0; i < GROUPS * STREAMS; i++) free(subjects[i].logits);
    engine_free(eng);
}

static void note_lengths(const char *what, const uint32_t *n) {
    char text[200];
    int at = 0;
    uint32_t more = 0;
    for (uint32_t i = 0; i <= USUAL_ROWS; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, " %u", n[i]);
    for (uint32_t i = USUAL_ROWS + 1; i <= ENGINE_WINDOW_ROWS_MAX; i++) more += n[i];
    test_note("  %s 0 to %d rows, and more:%s, %u", what, USUAL_ROWS, text, more);
}

static void note_counts(const char *name, const struct counts *n) {
    test_note(
        "%s: %u patterns in %u rounds, %u rows, %u beside others, %u with nothing wound back, "
        "%u rows behind noise checked",
        name, n->patterns, n->rounds, n->rows, n->beside, n->all_kept, n->noise_checked);
    test_note("  rounds with windows of 1 to %d streams: %u %u %u %u", STREAMS, n->streams[1],
              n->streams[2], n->streams[3], n->streams[4]);
    test_note("  %u with a branch, which was kept in %u, across pages in %u", n->branches,
              n->branches_kept, n->branches_crossing);
    note_lengths("kept", n->kept);
    note_lengths("wound back", n->wound_back);
}

TEST(any_pattern_of_kept_rows_leaves_the_bits_of_serial_decoding) {
    uint32_t patterns = 0;
    for (uint32_t k = 0; k < KINDS; k++) {
        struct counts n = {0};
        walk_kind(&n, k, PATTERNS / KINDS, ENGINE_FAULT_NONE);
        note_counts(kinds[k].name, &n);
        CHECK_EQ(n.wrong, 0);
        for (uint32_t i = 0; i <= USUAL_ROWS && PATTERNS > 1000; i++)
            CHECK(n.kept[i] >= 5 && n.wound_back[i] >= 5);
        CHECK(n.beside > n.patterns / 2 && n.all_kept > 0 && n.noise_checked > 0);
        CHECK(n.branches > n.patterns / 3 && n.branches_kept > n.patterns / 8);
        CHECK(n.branches_crossing > 0 || PATTERNS <= 1000);
        patterns += n.patterns;
    }
    test_note("patterns in all: %u", patterns);
    CHECK(patterns >= PATTERNS);
}

// One DeltaNet layer's matrices, or its convolution, are passed one row too few by a commit of two and more; or the keys of a branch
// that is kept stay where they were.
TEST(a_planted_short_commit_or_lost_branch_turns_the_comparison_red) {
    static const uint32_t faults[] = {ENGINE_FAULT_SHORT_S, ENGINE_FAULT_SHORT_CONV,
                                      ENGINE_FAULT_LOST_BRANCH};
    for (uint32_t k = 0; k < PLANTED; k++)
        for (uint32_t f = 0; f < 3; f++) {
            struct counts n = {0};
            walk_kind(&n, k, 200, faults[f]);
            CHECK(n.wrong > 0);
        }
}

static int window(struct engine *eng, uint64_t handle, const uint32_t *ids, uint32_t count,
                  uint32_t keep, struct err *e) {
    struct engine_window w = {.handle = handle, .ids = ids, .count = count, .keep = keep};
    return engine_windows(eng, &w, 1, e);
}

TEST(a_window_refuses_what_serial_decoding_could_not_have_done) {
    static uint32_t ids[8];
    struct engine_config config = {
        .model_dir = tiny_model(""), .threads = 1, .context_max = 256, .streams_max = 2};
    struct engine *eng = drive_open(&config);
    struct reply reply;
    struct drive d = {.eng = eng, .replies = &reply, .replies_count = 1};
    uint32_t vocab = engine_info(eng)->vocab_size, more[ENGINE_WINDOW_ROWS_MAX + 1] = {0};
    struct engine_request r = drive_request(ids, 8, 1, vocab, 12);
    struct err e = {0};
    uint64_t handle = drive_submit(&d, &r);
    CHECK_EQ(window(eng, handle, ids, 1, 0, &e), ST_INVAL); // still to be filled
    while (!reply.count) drive_step(&d);
    more[0] = reply.ids[0];
    CHECK_EQ(window(eng, handle + 1, more, 1, 1, &e), ST_INVAL);
    CHECK_EQ(window(eng, handle, more, 0, 0, &e), ST_INVAL);
    CHECK_EQ(window(eng, handle, more, 2, 3, &e), ST_INVAL);
    CHECK_EQ(window(eng, handle, more, 13, 0, &e),
             ST_INVAL); // no room for the last row
    more[0] = (reply.ids[0] + 1) % vocab;
    CHECK_EQ(window(eng, handle, more, 1, 1, &e), ST_INVAL);
    CHECK_HAS(e.msg, "drawn last");
    more[0] = reply.ids[0];
    more[1] = vocab;
    CHECK_EQ(window(eng, handle, more, 2, 1, &e), ST_INVAL);
    drive_all(&d);
    CHECK_EQ(reply.count, 12);
    engine_free(eng);
}
