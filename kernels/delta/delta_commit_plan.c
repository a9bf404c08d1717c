/* delta_commit_plan: see launch.h. The launches of delta_scan and conv_store, with the layers behind one another in z. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plans.h"
#include "kernels/delta/delta_commit.h"
#include "kernels/delta/delta_scan_order.h"

// The same grid and block with the argument of all layers.
static void add_layers(struct launch_list *ret, const struct launch_list *one, const char *kernel,
                       const struct delta_commit_args *a) {
    if (!one->count || !a->layers) return;
    const struct launch *from = &one->launches[0];
    struct launch *l = launch_add(ret, kernel, a, sizeof *a);
    for (int i = 0; i < 3; i++) {
        l->grid[i] = from->grid[i];
        l->block[i] = from->block[i];
    }
    l->grid[2] *= a->layers;
    l->early = from->early;
}

void delta_commit_plan(const struct delta_commit_args *a, const struct cuda_arch *arch,
                       const struct cuda_work *w, struct launch_list *ret) {
    struct launch_list scan = {0}, conv = {0};
    uint32_t rows = delta_rows_padded(a->scan.key_dim);
    delta_scan_plan(&a->scan, arch, w, &scan);
    conv_store_plan(&a->conv, arch, w, &conv);
    add_layers(ret, &scan,
               a->scan.key_dim == 128 ? "delta_commit_128"
               : rows == 64           ? "delta_commit_up_to_64"
               : rows == 128          ? "delta_commit_up_to_128"
                                      : "delta_commit_up_to_256",
               a);
    add_layers(ret, &conv, "delta_commit_conv", a);
}
