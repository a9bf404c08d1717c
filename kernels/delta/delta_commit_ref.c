/* delta_commit_ref: the twin: layer by layer. */
#include "kernels/cuda/refs.h"
#include "kernels/delta/delta_commit.h"

void delta_commit_ref(const struct delta_commit_args *a) {
    for (uint32_t i = 0; i < a->layers; i++) {
        struct delta_scan_args scan = a->scan;
        struct conv_store_args conv = a->conv;
        scan.state += i * a->layer_bytes;
        scan.qkv += i * a->qkv_bytes;
        scan.gates += i * a->gates_bytes;
        conv.state += i * a->layer_bytes;
        conv.m += i * a->m_bytes;
        delta_scan_ref(&scan);
        conv_store_ref(&conv);
    }
}
