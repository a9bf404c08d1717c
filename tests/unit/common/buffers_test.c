/* strbuf, ids, arena, sha256: growth, borders, and the published digests. */
#include "common/arena.h"
#include "common/ids.h"
#include "common/num.h"
#include "common/sha256.h"
#include "common/strbuf.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

TEST(a_strbuf_grows_and_stays_terminated) {
    struct strbuf b = {0};
    CHECK_STR(strbuf_str(&b), "");
    for (int i = 0; i < 1000; i++) strbuf_printf(&b, "%d,", i);
    CHECK_EQ(b.len, 10 * 2 + 90 * 3 + 900 * 4);
    CHECK_EQ(b.p[b.len], 0);
    strbuf_drop_front(&b, 2);
    CHECK(!strncmp(b.p, "1,2,", 4));
    strbuf_reset(&b);
    CHECK_STR(strbuf_str(&b), "");
    char *p = strbuf_take(&b);
    CHECK_STR(p, "");
    free(p);
    CHECK_EQ(b.cap, 0);
}

TEST(a_printf_longer_than_the_room_is_whole) {
    struct strbuf b = {0};
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    strbuf_printf(&b, "<%s>", text);
    CHECK_EQ(b.len, 5001);
    CHECK_EQ(b.p[5000], '>');
    strbuf_fini(&b);
}

TEST(ids_keep_what_was_added) {
    struct ids l = {0};
    for (uint32_t i = 0; i < 1000; i++) ids_add(&l, i * 3);
    ids_add_many(&l, (uint32_t[]){1, 2}, 2);
    ids_add_many(&l, NULL, 0);
    CHECK_EQ(l.len, 1002);
    CHECK_EQ(l.v[999], 2997);
    CHECK_EQ(l.v[1001], 2);
    ids_fini(&l);
}

TEST(arena_blocks_are_aligned_and_do_not_overlap) {
    struct arena a = {0};
    unsigned char *p[200];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 200; i++) {
            p[i] = arena_alloc(&a, i * 7);
            CHECK_EQ((uintptr_t)p[i] % 16, 0);
            memset(p[i], (int)i, i * 7);
        }
        for (size_t i = 0; i < 200; i++)
            for (size_t k = 0; k < i * 7; k++) CHECK_EQ(p[i][k], i & 255);
        arena_reset(&a);
        CHECK_EQ(a.used_bytes, 0);
    }
    CHECK_STR(arena_strndup(&a, "abcdef", 3), "abc");
    arena_fini(&a);
}

TEST(checked_products_and_sums_refuse_an_overflow) {
    size_t r = 5;
    CHECK(!mul_size(&r, SIZE_MAX / 2, 3));
    CHECK(!add_size(&r, SIZE_MAX, 1));
    CHECK_EQ(r, 5);
    CHECK(mul_size(&r, 6, 7) && r == 42);
    CHECK_EQ(ceil_div_u32(UINT32_MAX, 2), 0x80000000u);
    CHECK_EQ(ceil_div_u32(8, 4), 2);
    CHECK_EQ(align_up_size(17, 16), 32);
}

// FIPS 180-2's one-block message, and ids as little-endian words whatever the host's order.
TEST(sha256_gives_the_published_digest_and_can_go_on_after_one) {
    struct sha256 *h = sha256_new();
    uint8_t d[SHA256_BYTES], again[SHA256_BYTES];
    char hex[SHA256_HEX_BYTES];
    sha256_add(h, "a", 1);
    sha256_digest(h, d);
    sha256_add(h, "bc", 2);
    sha256_digest(h, d);
    sha256_hex(d, hex);
    CHECK_STR(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256_free(h);
    h = sha256_new();
    sha256_add_le32(h, (uint32_t[]){0x64636261}, 1);
    sha256_digest(h, d);
    sha256_free(h);
    h = sha256_new();
    sha256_add(h, "abcd", 4);
    sha256_digest(h, again);
    CHECK_MEM(d, again, SHA256_BYTES);
    sha256_free(h);
}
