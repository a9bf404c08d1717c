/* delta_scan_order: what the CUDA kernel and its twin agree on.
 *
 * A column of the state is shared by DELTA_PARTS lanes; row k belongs to lane (k / DELTA_QUAD) % DELTA_PARTS, so that a lane
 * reads keys and queries four at a time. A slot's state is [NV, DV / DELTA_COLUMNS, DK, DELTA_COLUMNS]. */
#pragma once

enum { DELTA_PARTS = 4, DELTA_QUAD = 4, DELTA_COLUMNS = 16, DELTA_KEY_DIM_MAX = 256 };
