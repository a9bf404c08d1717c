/* graphs: rounds whose launches are taken down before anything runs, so that each is sent by one call (kernels/cuda/graph.h).
 *
 * Of rounds in which n streams decode one row each, for every n up to GRAPHS_ROWS_MAX, and of those that check one stream's
 * window of n rows, or a window and a branch of n rows together. What differs between two such rounds stands in the round's tables (round.h), in states and in caches, so
 * the launches are the same ones: a graph changes no bit. All other rounds, those with rows of prompts, are launched one
 * operation at a time, which the device's work hides.
 * They take device memory, and must not take any in a round. So they are made twice: before the driver is asked what is left, for
 * the memory alone, and when all addresses are known, in that memory. Engine thread only. */
#pragma once
#include <stdint.h>

struct cuda_graph;
struct engine_config;
struct err;
struct model;
struct ops;
struct round;

enum { GRAPHS_ROWS_MAX = 64 };

struct graphs {
    const struct ops *ops;                      // NULL: there are none
    struct cuda_graph *decode[GRAPHS_ROWS_MAX]; // [n]: of n + 1 rows
    struct cuda_graph *window[GRAPHS_ROWS_MAX];
    struct cuda_graph *branch[GRAPHS_ROWS_MAX];
    uint32_t count;
    uint64_t bytes; // of the device, that they take
};

// Takes the memory, for a model laid out at no addresses (budget_lay_out), which it is then; where the settings and the backend
// have graphs. r: sized for it, as budget_make does. ST_INVAL names a setting; ST_NOMEM, ST_DEVICE.
int graphs_begin(struct graphs *g, struct model *m, struct round *r,
                 const struct engine_config *config, struct err *e);
// The graphs themselves; those of more streams than there are go.
int graphs_make(struct graphs *g, struct model *m, const struct round *tables, struct err *e);
// That of a round whose launches were taken down; NULL.
const struct cuda_graph *graphs_find(const struct graphs *g, const struct round *r);
void graphs_fini(struct graphs *g); // zeroed is fine
