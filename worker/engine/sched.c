/* sched: see sched.h. */
#include "worker/engine/sched.h"
#include "common/num.h"

#include <assert.h>

static uint32_t pick_decoding(struct sched_item *items, uint32_t count) {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < count; i++) {
        items[i].ret_rows = items[i].decoding ? items[i].pending : 0;
        rows += items[i].ret_rows;
    }
    return rows;
}

uint32_t sched_pick(struct sched *s, struct sched_item *items, uint32_t count, uint32_t rows_max,
                    uint32_t chunk, uint32_t beside) {
    uint32_t rows = pick_decoding(items, count), first = s->turn;
    bool short_of = false;
    assert(rows <= rows_max);
    if (rows && rows_max - rows > beside) rows_max = rows + beside;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = (first + i) % count;
        struct sched_item *item = &items[slot];
        if (item->decoding || !item->pending) continue;
        uint32_t wanted = min_u32(item->pending, chunk);
        item->ret_rows = min_u32(wanted, rows_max - rows);
        rows += item->ret_rows;
        if (item->ret_rows == wanted || short_of) continue;
        short_of = true; // the first that came too short is served first next time
        s->turn = slot;
    }
    return rows;
}
