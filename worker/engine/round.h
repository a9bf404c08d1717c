/* round: the rows of one forward, gathered on the host and then put into the device's tables by one copy.
 *
 * The tables lie one behind the other, each as long as the round needs, so where they are follows from the counts of rows, runs
 * and picks: rounds with the same counts have the same addresses, and differ in what stands there alone.
 * Everything is allocated by round_init; adding never fails within the bounds given there. Engine thread only. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/types.h"

struct carve;
struct draw_row;
struct ops;

struct round {
    uint32_t rows_max, runs_max, picks_max;
    uint32_t rows, runs_count, picks_count, record_rows;
    uint32_t *ids, *pos;    // [rows_max]
    uint32_t *keys;         // [rows_max] place in the page table: the slot, but for a branch
    uint32_t *run;          // [rows_max] whose row it is; of the host alone
    struct run *runs;       // [runs_max]
    struct run *key_runs;   // [runs_max] with the place in the page table for the slot
    uint32_t *picks;        // [picks_max] rows that go through the head, ascending
    struct draw_row *draws; // [picks_max] for each pick, where the device draws from it
    unsigned char *packed;  // as it is sent
    devptr dev;             // room for all tables
    // By round_place.
    devptr dev_ids, dev_keys, dev_pos, dev_runs, dev_key_runs, dev_picks, dev_draws;
};

void round_init(struct round *r, uint32_t rows_max, uint32_t runs_max);
void round_fini(struct round *r);
void round_carve(struct round *r, struct carve *c);
void round_reset(struct round *r);
// A run of count rows with ids at pos.. of the stream in slot. record: states stay as they are and the rows are recorded
// behind those of earlier recorded runs. Returns the first row.
uint32_t round_add(struct round *r, uint32_t slot, uint32_t pos, const uint32_t *ids,
                   uint32_t count, bool record);
// A recorded run beside the stream's window, from the same state, whose keys are those at another place of the page table.
uint32_t round_add_branch(struct round *r, uint32_t slot, uint32_t keys, uint32_t pos,
                          const uint32_t *ids, uint32_t count);
void round_pick(struct round *r,
                uint32_t row);     // in ascending order; its draw is the caller's to fill in
void round_place(struct round *r); // lays out the device's tables
void round_write(struct round *r, const struct ops *ops); // ... and fills them
struct rows round_rows(const struct round *r);     // as operations take them that look at states
struct rows round_key_rows(const struct round *r); // ... and those that look at keys

// The run of a row.
static inline const struct run *round_run(const struct round *r, uint32_t row) {
    return &r->runs[r->run[row]];
}
