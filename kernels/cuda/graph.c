/* graph: see graph.h. */
#include "kernels/cuda/graph.h"
#include "common/err.h"
#include "common/mem.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/profile.h"

#include <assert.h>
#include <stdlib.h>

int cuda_graph_begin(struct cuda *c, bool early, struct err *e) {
    assert(!c->recording && !c->measuring);
    if (c->failed) return cuda_sync(c, e);
    cu_result r = c->d->capture_begin(c->stream, CU_CAPTURE_THREAD_LOCAL);
    if (r) return cuda_driver_error(c->d, r, "cuStreamBeginCapture", e);
    c->recording = true;
    c->recording_early = early;
    c->recorded = 0;
    if (c->profile) cuda_profile_begin(c);
    return ST_OK;
}

static int instantiate(struct cuda *c, struct cuda_graph *g, cu_graph from, struct err *e) {
    cu_graph_exec exec;
    cu_result r = c->d->graph_instantiate(&exec, from, 0);
    if (r) return cuda_driver_error(c->d, r, "cuGraphInstantiate", e);
    g->exec = exec;
    return ST_OK;
}

// The memory of another graph may be needed for this one, so it goes first.
static int replace(struct cuda *c, struct cuda_graph *g, cu_graph from, struct err *e) {
    cu_graph_exec old = g->exec;
    g->exec = NULL;
    if (old) c->d->graph_exec_free(old);
    return instantiate(c, g, from, e);
}

static int point(struct cuda *c, struct cuda_graph *g, cu_graph from, struct err *e) {
    struct cu_graph_update info;
    cu_result r =
        g->exec ? c->d->graph_update(g->exec, from, &info) : CU_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    if (r == CU_ERROR_GRAPH_EXEC_UPDATE_FAILURE) return replace(c, g, from, e);
    return r ? cuda_driver_error(c->d, r, "cuGraphExecUpdate", e) : ST_OK;
}

// What a first run would take is taken now.
static int upload(struct cuda *c, struct cuda_graph *g, struct err *e) {
    cu_result r = c->d->graph_upload(g->exec, c->stream);
    if (r) return cuda_driver_error(c->d, r, "cuGraphUpload", e);
    return cuda_sync(c, e);
}

int cuda_graph_end(struct cuda *c, struct cuda_graph **io, struct err *e) {
    cu_graph from = NULL;
    struct cuda_graph *g = *io ? *io : mem_calloc(1, sizeof *g);
    assert(c->recording);
    c->recording = false;
    *io = NULL;
    // A launch that failed has ended the capture too; its error is the one to tell.
    cu_result r = c->d->capture_end(c->stream, &from);
    int st = c->failed ? cuda_sync(c, e)
             : r       ? cuda_driver_error(c->d, r, "cuStreamEndCapture", e)
                       : ST_OK;
    if (!st) st = point(c, g, from, e);
    if (!st) st = upload(c, g, e);
    if (!r && from) c->d->graph_free(from);
    g->launches = c->recorded;
    if (st)
        cuda_graph_free(c, g);
    else
        *io = g;
    return st;
}

void cuda_graph_run(struct cuda *c, const struct cuda_graph *g) {
    if (c->failed) return;
    cuda_check(c, c->d->graph_launch(g->exec, c->stream), "cuGraphLaunch");
}

void cuda_graph_free(struct cuda *c, struct cuda_graph *g) {
    if (!g) return;
    if (g->exec) c->d->graph_exec_free(g->exec);
    free(g);
}
