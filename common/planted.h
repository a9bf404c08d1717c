/* planted: 1 in a build with -Dplanted=true, else 0. A bound that it is added to, or taken from, is wrong on purpose there:
 * tests/fuzz/run.sh shows that each fuzz target finds its own within a minute. */
#pragma once

#ifdef RAILYARD_PLANTED
enum { PLANTED = 1 };
#else
enum { PLANTED = 0 };
#endif
