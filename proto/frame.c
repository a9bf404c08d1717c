/* frame: names, ids and version choice; see frame.h. frame_encode.c and frame_decode.c hold the rest. */
#include "proto/frame.h"
#include "common/arena.h"
#include "common/num.h"

#include <assert.h>
#include <string.h>

uint32_t frame_id_at(const struct frame_ids *l, uint32_t i) {
    assert(i < l->count);
    const uint8_t *p = l->le + 4 * (size_t)i;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

struct frame_ids frame_ids_of(const uint32_t *v, size_t count, struct arena *a) {
    assert(count <= UINT32_MAX);
    struct frame_ids ret = {(const uint8_t *)v, (uint32_t)count};
    if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ || count == 0) return ret;
    uint32_t *le = arena_alloc(a, count * sizeof *le);
    for (size_t i = 0; i < count; i++) le[i] = __builtin_bswap32(v[i]);
    ret.le = (const uint8_t *)le;
    return ret;
}

uint32_t frame_version_pick(uint32_t peer_min, uint32_t peer_max) {
    uint32_t lo = max_u32(peer_min, FRAME_VERSION_MIN);
    uint32_t hi = min_u32(peer_max, FRAME_VERSION_MAX);
    return lo <= hi ? hi : 0;
}

const char *frame_type_name(enum frame_type t) {
    static const char *const names[FRAME_TYPE_END] = {
        [FRAME_HELLO] = "HELLO",   [FRAME_WELCOME] = "WELCOME", [FRAME_VOCAB] = "VOCAB",
        [FRAME_SUBMIT] = "SUBMIT", [FRAME_CANCEL] = "CANCEL",   [FRAME_TOKENS] = "TOKENS",
        [FRAME_DONE] = "DONE",     [FRAME_FAIL] = "FAIL",       [FRAME_STATUS] = "STATUS",
        [FRAME_DRAIN] = "DRAIN",   [FRAME_GOODBYE] = "GOODBYE", [FRAME_PING] = "PING",
        [FRAME_PONG] = "PONG",
    };
    return (unsigned)t < FRAME_TYPE_END && names[t] ? names[t] : "unknown";
}

const char *frame_state_name(enum frame_state s) {
    static const char *const names[FRAME_STATE_END] = {
        [FRAME_STATE_LOADING] = "loading",   [FRAME_STATE_READY] = "ready",
        [FRAME_STATE_DRAINING] = "draining", [FRAME_STATE_DRAINED] = "drained",
        [FRAME_STATE_FAILED] = "failed",
    };
    return (unsigned)s < FRAME_STATE_END && names[s] ? names[s] : "unknown";
}

const char *frame_draft_kind(uint32_t kind) {
    static const char *const names[FRAME_DRAFT_KINDS] = {"copy", "mtp", "dflash", "dflash2",
                                                         "tree"};
    return kind < FRAME_DRAFT_KINDS ? names[kind] : "unknown";
}

const char *frame_fail_name(enum frame_fail_code c) {
    static const char *const names[FRAME_FAIL_CODE_END] = {
        [FRAME_FAIL_FULL] = "full",
        [FRAME_FAIL_INVALID] = "invalid",
        [FRAME_FAIL_UNSUPPORTED] = "unsupported",
        [FRAME_FAIL_TOO_LONG] = "too_long",
        [FRAME_FAIL_DEVICE] = "device",
        [FRAME_FAIL_INTERNAL] = "internal",
        [FRAME_FAIL_VERSION] = "version",
        [FRAME_FAIL_REFUSED] = "refused",
    };
    return (unsigned)c < FRAME_FAIL_CODE_END && names[c] ? names[c] : "unknown";
}
