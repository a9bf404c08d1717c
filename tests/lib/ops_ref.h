/* ops_ref: the table of operations over the CUDA kernels' twins (kernels/cuda/refs.h), in host memory. Tests only: slow. */
#pragma once

struct ops;

void ops_ref_open(struct ops *ret); // closed by ops_close
// The twins in place of the operations of a table whose memory is the host's.
void ops_ref_put(struct ops *o);
