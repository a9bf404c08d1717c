/* dflash: what a DFlash drafter takes, known before anything is loaded. dflash_open is drafter.h's. */
#pragma once
#include <stdint.h>

struct dflash_config;
struct drafter_limits;
struct err;
struct model;

// Bytes of device memory that a drafter of this config takes beside this target, within these limits. No file is looked at; the
// model's weights must be laid out (model_carve, measuring will do).
// ST_INVAL: its draft vocabulary is none.
int dflash_config_bytes(uint64_t *ret, const struct dflash_config *cfg, const struct model *m,
                        const struct drafter_limits *lim, struct err *e);
