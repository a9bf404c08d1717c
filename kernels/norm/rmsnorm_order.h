/* rmsnorm_order: what the CUDA kernel and its twin agree on. */
#pragma once

enum { RMSNORM_THREADS = 256 };
