/* q4_pack: a plain matrix to 4 bits (q4.h). Threads share its rows. */
#pragma once
#include "kernels/draft/q4.h"

struct q4_pack_args {
    struct weight from; // plain
    struct q4 to;
};
