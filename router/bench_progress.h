/* bench_progress: what a long bench says on stderr while it runs. On a terminal one line that changes as ids come; else
 * one line a cell. Main thread; its timer lives on the loop of a wave and ends with it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <uv.h>

struct bench_ask;
struct bench_cell;

struct bench_progress {
    FILE *out; // NULL: says nothing
    bool live; // out is a terminal
    uint32_t waves, waves_over;
    // Of the wave that runs.
    uv_timer_t timer;
    const char *name;
    const struct bench_ask *asks;
    uint32_t count;
};

void bench_progress_init(struct bench_progress *p, FILE *out, uint32_t waves);
// A wave begins: asks[0..count) are about to be started.
void bench_progress_wave(struct bench_progress *p, uv_loop_t *loop, const char *name,
                         const struct bench_ask *asks, uint32_t count);
void bench_progress_wave_over(struct bench_progress *p);
void bench_progress_cell(struct bench_progress *p, const struct bench_cell *c); // it is summed up
