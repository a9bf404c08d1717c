/* inspect_drafter: what `inspect` says of a folder that holds no model but a drafter for one. */
#pragma once
#include <stdbool.h>

struct options;

bool inspect_is_drafter(const char *dir);
// Prints what the drafter is and what is wrong with it; an exit code.
int inspect_drafter(const struct options *o);
