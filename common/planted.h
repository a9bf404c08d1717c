/* planted: 1 in a build with -Dplanted=true, else 0. A bound that it is added to, or taken from, is wrong on purpose there:
 * tests/fuzz/run.sh shows that each fuzz target finds its own within a minute. Such a build wants -Dfuzz=true and installs nothing;
 * in any other PLANTED is a constant 0, so that no code of a plant is in it. */
#pragma once

#ifdef RAILYARD_PLANTED
enum { PLANTED = 1 };
#else
enum { PLANTED = 0 };
#endif
