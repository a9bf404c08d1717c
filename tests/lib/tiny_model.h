/* tiny_model: random checkpoints for tests, made by tests/tools/make_tiny.py, or with "--widths" make_exl3.py, in the temporary folder of the test. */
#pragma once

// Linears of many widths and every codebook beside plain ones.
#define TINY_EXL3                                                                                  \
    "--widths 4,3.5,2,plain,8,5,1.5 --codebooks mul1,mcg,3inst --odd --head-width 6 --hidden 128 " \
    "--intermediate 256 --head-dim 64 --dk 32 --dv 32"
// Experts: packed and plain in one layer, single and EXL3 or plain in the next.
#define TINY_EXL3_MOE                                                                              \
    "--moe mixed --experts 11 --top-k 3 --widths 4,plain,2.5 --codebooks mul1 --hidden 128 "       \
    "--expert-width 128 --shared-width 128 --seed 4"

// The folder of a checkpoint made with these arguments; made once for each. Lives as long as the program.
const char *tiny_model(const char *args);
// The folder of the trained demo, or NULL where it is not there.
const char *demo_model(void);
// The same of another of tests/models/, its path in ret.
enum { TINY_MODEL_PATH_BYTES = 4096 };
const char *demo_model_of(const char *folder, char ret[TINY_MODEL_PATH_BYTES]);
