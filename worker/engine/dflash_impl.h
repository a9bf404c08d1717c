/* dflash_impl: the parts of a DFlash drafter, shared by the files that make it up (dflash.c, dflash_forward.c, dflash_select.c). */
#pragma once
#include "kernels/draft/draft.h"
#include "worker/engine/dflash_config.h"
#include "worker/engine/dflash_context.h"
#include "worker/engine/dflash_weights.h"
#include "worker/engine/draft_head.h"
#include "worker/engine/drafter.h"
#include "worker/engine/tables.h"

enum {
    DFLASH_ABSORB_ROWS = 128,      // context rows projected at once
    DFLASH_FORWARD_ROWS_MAX = 256, // rows of blocks in one forward; more streams take another
    DFLASH_HEAD_ROWS = 32,         // rows through the head at once
    DFLASH_TABLES = 5,             // sent at once, at most
};

struct dflash_rows { // of a forward, or of a chunk of context rows, on the host
    uint32_t count, blocks_count, runs_count, picks_count;
    uint32_t *ids, *pos,
        *picks; // picks: rows of the target's taps, or those whose next id is drafted
    struct draft_block *blocks;
    struct draft_ask **asks; // of each block
    struct run *runs;
};

struct dflash {
    struct dflash_config cfg;
    const struct model *m;
    const struct drafter_limits *lim;
    struct dflash_weights w;
    struct dflash_context context;
    struct draft_head head;
    uint32_t rows_max; // of a forward
    struct dflash_rows rows;
    // device memory, by dflash_carve
    devptr tables;                        // room for those that the host fills
    devptr ids, pos, picks, blocks, runs; // of them, as they were sent last
    devptr angles;
    devptr x, n, u, y; // [rows, D]: residual, normed, behind a convolution, a sublayer's answer
    devptr d;          // [rows, 2, taps, groups]
    devptr q, k, v, a, gate, up;
    devptr hidden, g;      // [rows, D], [rows, rank] of the picked rows
    devptr feats, f;       // [DFLASH_ABSORB_ROWS, taps * D], [.., D]
    unsigned char *packed; // the tables, as they are sent
    // what is read back: candidates of each picked row, and g
    struct cuda_graph *graphs[DFLASH_BLOCK_MAX + 1]; // [n]: a block of n rows alone; NULL: none
    uint32_t *top_ids;
    float *top_values, *host_g;
    float *predecessor, *successor; // [rank] each: one row of a codebook
};

// Everything but the file. The drafter's config must stand in d->cfg.
int dflash_init(struct dflash *d, const struct model *m, const struct drafter_limits *lim,
                struct err *e);
void dflash_carve(struct dflash *d, struct carve *c);
uint64_t dflash_tables_bytes(const struct dflash *d);

// The rows that were gathered become context.
void dflash_project_context(struct dflash *d);
// The blocks that were gathered: hidden rows behind the final norm, of the picked rows. Their tables go to the device first, or only have
// their places; the operations alone, behind them, may be taken down.
void dflash_forward(struct dflash *d);
void dflash_send(struct dflash *d);
void dflash_place(struct dflash *d);
void dflash_blocks(struct dflash *d);
void dflash_heads(struct dflash *d); // candidates of the picked rows, which stay on the device
// Candidates of the picked rows to the host; made: they are on the device.
void dflash_candidates(struct dflash *d, bool made);
// The ids of every block into its ask.
void dflash_select(struct dflash *d);
