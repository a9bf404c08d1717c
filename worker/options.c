/* options: see options.h. */
#include "worker/options.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/strbuf.h"
#include "kernels/cpu_pool.h"
#include "worker/engine/engine.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IN(member_) offsetof(struct options, member_)
static const struct setting table[] = {
    {"rank", SETTING_INT, IN(rank), "-1", -1, 1 << 20, NULL, NULL,
     "the number wanted at the router; -1: the lowest free one"},
    {"lobby", SETTING_STRING, IN(lobby), NULL, 0, 0, NULL, NULL,
     "the router's lobby, ipc://PATH (default lobby.sock in run.dir)"},
    {"run.dir", SETTING_STRING, IN(run_dir), NULL, 0, 0, NULL, NULL,
     "folder of the router's sockets (default /run/railyard, else $XDG_RUNTIME_DIR/railyard)"},
    {"alive", SETTING_STRING, IN(alive), NULL, 0, 0, NULL, NULL,
     "file whose time of change is renewed while loading and rounds go on, for a liveness probe"},
    {"name", SETTING_STRING, IN(name), NULL, 0, 0, NULL, NULL,
     "what people call this worker (default the host's name)"},
    {"backend", SETTING_CHOICE, IN(backend), "auto", 0, 0, "auto|cpu|cuda", NULL,
     "where to compute; auto: on a GPU where there is one"},
    {"device", SETTING_INT, IN(device), "-1", -1, 63, NULL, NULL,
     "the GPU's number among those that --list-devices shows; -1: the rank, modulo their count"},
    {"embedding", SETTING_CHOICE, IN(embedding), "auto", 0, 0, "auto|card|host", NULL,
     "where the embedding's rows live; auto: in host memory only when the card has no room for "
     "them"},
    {"graphs", SETTING_CHOICE, IN(graphs), "on", 0, 0, "on|off", NULL,
     "on a GPU, whether rounds of decoding streams are launched by one call; off is for "
     "comparison"},
    {"scratch", SETTING_CHOICE, IN(scratch), "union", 0, 0, "union|disjoint", NULL,
     "whether mixers and MLP share the memory of their rows; disjoint is for comparison"},
    {"context", SETTING_INT, IN(context), "0", 0, 1 << 30, NULL, "tokens",
     "longest prompt and reply of a stream; 0: what the checkpoint allows and memory holds"},
    {"streams", SETTING_INT, IN(streams), "0", 0, ENGINE_STREAMS_MAX, NULL, NULL,
     "streams at once; 0: what fits"},
    {"memory-fraction", SETTING_REAL, IN(memory_fraction), "1", 0.01, 1, NULL, NULL,
     "part of the free memory to take"},
    {"threads", SETTING_INT, IN(threads), "0", 0, CPU_POOL_THREADS_MAX, NULL, NULL,
     "threads of the CPU backend; 0: one for each CPU that this process may use"},
    {"chunk", SETTING_INT, IN(chunk), "0", 0, 1 << 20, NULL, "tokens",
     "prompt tokens of one stream filled in one round; 0: the engine's choice"},
    {"round-rows", SETTING_INT, IN(round_rows), "0", 0, ENGINE_ROUND_ROWS_MAX, NULL, "rows",
     "rows of one forward; 0: the engine's choice"},
    {"kv", SETTING_CHOICE, IN(kv), "auto", 0, 0, "auto|f32|bf16|fp8", NULL,
     "type of keys and values"},
    {"drafter", SETTING_STRING, IN(drafter), "auto", 1, 0, NULL, NULL,
     "auto: the checkpoint's MTP head and copies; none; or the folder of a DFlash "
     "drafter. Drafts never change a reply"},
    {"draft-kinds", SETTING_STRING, IN(draft_kinds), "all", 1, 0, NULL, NULL,
     "kinds of drafts allowed, a list of copy,mtp,dflash,dflash2; one that is named must be there"},
    {"draft-rows", SETTING_INT_OR_0, IN(draft_rows), "0", 2, ENGINE_WINDOW_ROWS_MAX, NULL, "rows",
     "rows of one stream in a round, its drafts and one more; 0: the engine's choice"},
    {"drafter-quantize-min", SETTING_INT, IN(drafter_quantize_min), "0", 0, SETTING_INT_MAX, NULL,
     "values",
     "a block drafter's matrices of so many values and more become 4 bits at load; 0: as its "
     "config.json says"},
    {"draft-vocab", SETTING_STRING, IN(draft_vocab), "auto", 0, 0, NULL, NULL,
     "ids that drafts are made of: auto (the drafter's own spans, else those below 98304 and the "
     "control tokens); all; or a list of FIRST-LAST"},
    {"costs", SETTING_STRING, IN(costs), NULL, 0, 0, NULL, NULL,
     "file of what rows and drafts cost here, from bench engine --write-costs; it decides how many "
     "drafts a round takes"},
    {"debug.fault", SETTING_CHOICE, IN(fault), "none", 0, 0,
     "none|ulp|stale-conv|short-s|short-conv|window-rope|lost-tap|lost-branch", NULL,
     "a planted fault, for the tests that must find it"},
    {"debug.nan-fill", SETTING_BOOL, IN(nan_fill), "off", 0, 0, NULL, NULL,
     "fill memory that nobody may read with NaN, all the time"},
    {"out", SETTING_STRING, IN(out), NULL, 0, 0, NULL, NULL, "logits: the .npy file to write"},
    {"write-costs", SETTING_STRING, IN(write_costs), NULL, 0, 0, NULL, NULL,
     "bench engine: measure what rows and drafts cost and write the file for --costs"},
    {"profile", SETTING_BOOL, IN(profile), "off", 0, 0, NULL, NULL,
     "bench engine: where a GPU's time goes, operation by operation, for rounds of many shapes"},
    {"measure", SETTING_STRING, IN(measure), NULL, 1, 0, NULL, NULL,
     "bench engine: parts in turn, a list of shapes,operations,rounds,prompts (these four: "
     "--profile), "
     "crowd,drafts,blocks,long,scratch,load,load-cold"},
    {"json", SETTING_STRING, IN(json), NULL, 0, 0, NULL, NULL,
     "bench engine: a file that each figure is added to, a JSON object a line"},
    {"plan", SETTING_BOOL, IN(plan), "off", 0, 0, NULL, NULL,
     "inspect: what the model would take of a GPU with room-gib free, with these settings; needs "
     "no GPU"},
    {"room-gib", SETTING_REAL, IN(room_gib), "24", 0, 1 << 20, NULL, "GiB",
     "inspect --plan: what is free on the card"},
    {"plan-sm", SETTING_INT, IN(plan_sm), "90", 80, 200, NULL, NULL,
     "inspect --plan: its compute capability, times ten"},
    {"plan-unified", SETTING_BOOL, IN(plan_unified), "off", 0, 0, NULL, NULL,
     "inspect --plan: card and host share one memory"},
    {"check", SETTING_BOOL, IN(check), "off", 0, 0, NULL, NULL,
     "inspect: print nothing but what is wrong, also with these settings of a worker"},
    {"kind", SETTING_BOOL, IN(kind), "off", 0, 0, NULL, NULL,
     "inspect: print what the folder is, 'model' or 'drafter', and end"},
    {"log.level", SETTING_CHOICE, IN(log_level), "info", 0, 0, "debug|info|warn|error", NULL,
     "least level of a line on stderr"},
    {"list-devices", SETTING_BOOL, IN(list_devices), "off", 0, 0, NULL, NULL,
     "print the GPUs as JSON and end"},
    {"version", SETTING_BOOL, IN(version), "off", 0, 0, NULL, NULL, "print the version and end"},
    {"help", SETTING_BOOL, IN(help), "off", 0, 0, NULL, NULL, "print this and end"},
};
enum { SETTING_COUNT = sizeof table / sizeof table[0] };

int options_init(struct options *o, int argc, char **argv, struct err *e) {
    *o = (struct options){0};
    settings_init(&o->settings, table, SETTING_COUNT, o);
    o->args = mem_calloc((size_t)argc + 1, sizeof *o->args);
    int st = settings_parse(&o->settings, argc, argv, o->args, &o->args_count, e);
    if (st) {
        options_fini(o);
        return st;
    }
    // A flag would show it to every user of the machine in the list of processes.
    const char *token = getenv("RAILYARD_TOKEN");
    o->token = mem_strdup(token ? token : "");
    return ST_OK;
}

void options_fini(struct options *o) {
    settings_fini(&o->settings);
    free(o->token);
    o->token = NULL;
    free(o->args);
    o->args = NULL;
}

void options_help(void) {
    struct options o = {0};
    settings_init(&o.settings, table, SETTING_COUNT, &o);
    settings_help(&o.settings, stdout);
    settings_fini(&o.settings);
}

void options_log(const struct options *o) {
    struct strbuf b = {0};
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        if (!o->settings.given[i]) continue;
        strbuf_printf(&b, " %s=", table[i].name);
        settings_print(&o->settings, &table[i], &b);
    }
    log_info("settings", "model=\"%s\"%s", o->model, strbuf_str(&b));
    strbuf_fini(&b);
}

uint32_t options_device(const struct options *o) {
    return (uint32_t)(o->device >= 0 ? o->device : o->rank > 0 ? o->rank : 0);
}

static uint32_t fault_of(const char *name) {
    static const char *const names[ENGINE_FAULT_END] = {
        [ENGINE_FAULT_NONE] = "none",
        [ENGINE_FAULT_ULP] = "ulp",
        [ENGINE_FAULT_STALE_CONV] = "stale-conv",
        [ENGINE_FAULT_SHORT_S] = "short-s",
        [ENGINE_FAULT_SHORT_CONV] = "short-conv",
        [ENGINE_FAULT_WINDOW_ROPE] = "window-rope",
        [ENGINE_FAULT_LOST_TAP] = "lost-tap",
        [ENGINE_FAULT_LOST_BRANCH] = "lost-branch",
    };
    uint32_t i = 0;
    while (strcmp(names[i], name)) i++; // the table of settings lets no others through
    return i;
}

void options_engine(const struct options *o, struct engine_config *ret) {
    *ret = (struct engine_config){
        .model_dir = o->model,
        .backend = o->backend,
        .context_max = (uint32_t)o->context,
        .streams_max = (uint32_t)o->streams,
        .threads = (uint32_t)o->threads,
        .chunk_tokens = (uint32_t)o->chunk,
        .round_rows_max = (uint32_t)o->round_rows,
        .memory_fraction = o->memory_fraction,
        .kv = o->kv,
        .device = options_device(o),
        .device_wraps = o->device < 0,
        .embedding = o->embedding,
        .graphs_off = !strcmp(o->graphs, "off"),
        .scratch_disjoint = !strcmp(o->scratch, "disjoint"),
        .spoil_dead = o->nan_fill,
        .drafter = o->drafter,
        .draft_kinds = o->draft_kinds,
        .draft_rows = (uint32_t)o->draft_rows,
        .drafter_quantize_min = (uint64_t)o->drafter_quantize_min,
        .draft_vocab = o->draft_vocab,
        .costs = o->costs,
        .fault = fault_of(o->fault),
    };
}

char *options_lobby(const struct options *o) {
    struct strbuf b = {0};
    const char *user = getenv("XDG_RUNTIME_DIR");
    if (o->lobby[0])
        strbuf_printf(&b, "%s%s", strstr(o->lobby, "://") ? "" : "ipc://", o->lobby);
    else if (o->run_dir[0])
        strbuf_printf(&b, "ipc://%s/lobby.sock", o->run_dir);
    else if (user && access("/run/railyard", F_OK))
        strbuf_printf(&b, "ipc://%s/railyard/lobby.sock", user);
    else
        strbuf_add_str(&b, "ipc:///run/railyard/lobby.sock");
    return strbuf_take(&b);
}

char *options_model_name(const struct options *o) {
    size_t len = strlen(o->model);
    while (len > 1 && o->model[len - 1] == '/') len--;
    size_t start = len;
    while (start > 0 && o->model[start - 1] != '/') start--;
    return mem_strndup(o->model + start, len - start);
}
