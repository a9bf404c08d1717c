/* carve: measured and carved by the same code, regions named, parts over one another. */
#include "tests/lib/test.h"
#include "worker/engine/carve.h"

struct parts {
    devptr a, b, c, d, e;
};

static void lay_out(struct carve *c, struct parts *p) {
    carve_begin(c, "first");
    p->a = carve_take(c, 100);
    carve_begin(c, "shared");
    uint64_t mark = carve_mark(c);
    p->b = carve_take(c, 1000);
    carve_rewind(c, mark);
    p->c = carve_take(c, 300);
    p->d = carve_take(c, 5000);
    carve_past(c);
    carve_begin(c, "last");
    p->e = carve_take(c, 0);
}

TEST(the_measure_pass_gives_the_size_of_the_real_one) {
    struct carve m = {0}, r = {.base = 1 << 20};
    struct parts p, q;
    lay_out(&m, &p);
    lay_out(&r, &q);
    CHECK_EQ(carve_bytes(&m), carve_bytes(&r));
    CHECK_EQ(q.a - p.a, 1 << 20);
    CHECK_EQ(q.e - p.e, 1 << 20);
    CHECK(q.e + CARVE_ALIGN <= r.base + carve_bytes(&r));
}

TEST(parts_that_never_live_together_share_their_place_and_others_do_not) {
    struct carve c = {.base = 4096};
    struct parts p;
    lay_out(&c, &p);
    CHECK_EQ(p.b, p.c);
    CHECK(p.d >= p.c + 300);
    CHECK(p.b >= p.a + 100);
    CHECK(p.e >= p.d + 5000 && p.e >= p.b + 1000);
    devptr all[] = {p.a, p.b, p.c, p.d, p.e};
    for (int i = 0; i < 5; i++) CHECK_EQ(all[i] % CARVE_ALIGN, 0);
}

TEST(regions_are_named_and_add_up_to_the_block) {
    struct carve c = {0};
    struct parts p;
    uint64_t sum = 0;
    lay_out(&c, &p);
    CHECK_EQ(c.regions_count, 3);
    CHECK_STR(c.regions[0].name, "first");
    CHECK_STR(c.regions[1].name, "shared");
    CHECK_EQ(c.regions[1].bytes, 512 + 5120);
    for (uint32_t i = 0; i < c.regions_count; i++) sum += c.regions[i].bytes;
    CHECK_EQ(sum, carve_bytes(&c));
}
