/* plan_check: holds planned launches against the kernels that were compiled and against what a GPU allows. */
#pragma once
#include <stdint.h>

#include "kernels/cuda/launch.h"

// An empty list, for a plan.
struct launch_list *plan_check_begin(void);
// Ends the test if a launch names no kernel of the fatbin, gives it an argument of another size, or asks for more than arch has, or is early and the kernel does not wait.
// Counts the launches whose kernel this build was compiled for arch; a build with fewer architectures holds fewer.
uint32_t plan_check(const struct launch_list *l, const struct cuda_arch *arch, const char *op);
