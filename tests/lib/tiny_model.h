/* tiny_model: random checkpoints for tests, made by tests/tools/make_tiny.py, or with "--widths" make_exl3.py, in the temporary folder of the test. */
#pragma once

// The folder of a checkpoint made with these arguments; made once for each. Lives as long as the program.
const char *tiny_model(const char *args);
// The folder of the trained demo, or NULL where it is not there.
const char *demo_model(void);
