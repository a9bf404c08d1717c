/* delta_commit: what a commit of recorded rows asks of all delta layers, as one operation: delta_scan, with out 0, and conv_store, once
 * for each layer (their headers), layer i at i times the strides behind the first. The same bits. A backend may have NULL in its table: then
 * those are issued. */
#pragma once
#include "kernels/delta/conv.h"
#include "kernels/delta/delta_scan.h"

struct delta_commit_args {
    struct delta_scan_args scan; // of the first layer
    struct conv_store_args conv;
    uint32_t layers;
    // Bytes from one layer's to the next: of states (of scan and conv alike), of recorded m, qkv, gates.
    uint64_t layer_bytes, m_bytes, qkv_bytes, gates_bytes;
};
