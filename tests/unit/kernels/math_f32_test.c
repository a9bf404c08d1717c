/* The CPU backend's own exp, sigmoid, silu, log1p, softplus, sine and cosine, against the C library in double. */
#pragma GCC diagnostic ignored "-Wpsabi" // 64-byte vectors only pass through inlined functions
#include "kernels/math_f32.h"
#include "kernels/math_sincos.h"
#include "tests/lib/test.h"

#include <float.h>
#include <math.h>

// |got - want| in units of the last place of want as fp32; below the smallest normal, of that.
static double ulps(float got, double want) {
    int exponent;
    if (fabs(want) < FLT_MIN) want = got == 0 ? 0 : want;
    frexp(fabs(want) < FLT_MIN ? FLT_MIN : want, &exponent);
    return fabs((double)got - want) / ldexp(1, exponent - 24);
}

struct worst {
    double ulps;
    float at;
};

static void keep_worst(struct worst *w, vf x, vf y, double (*exact)(double)) {
    for (int i = 0; i < LANES; i++) {
        double u = ulps(y[i], exact((double)x[i]));
        if (!(u <= w->ulps)) *w = (struct worst){u, x[i]};
    }
}

static double exact_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double exact_silu(double x) {
    return x / (1 + exp(-x));
}

static double exact_softplus(double x) {
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static vf run(int function, vf x) {
    switch (function) {
    case 0: return vf_exp(x);
    case 1: return vf_sigmoid(x);
    case 2: return vf_silu(x);
    case 3: return vf_log1p_unit(x);
    default: return vf_softplus(x);
    }
}

TEST(functions_of_one_number_are_within_their_stated_error) {
    static const struct {
        const char *name;
        int function;
        double (*exact)(double);
        float from, to;
        double bound;
    } cases[] = {
        {"exp", 0, exp, -87.33f, 88.72f, 1.2},
        {"exp near 0", 0, exp, -0.01f, 0.01f, 1.2},
        {"sigmoid", 1, exact_sigmoid, -80, 80, 2.5},
        {"silu", 2, exact_silu, -80, 80, 3},
        {"log1p", 3, log1p, 0, 1, 2.2},
        {"log1p of the small", 3, log1p, 0, 1e-6f, 2.2},
        {"softplus", 4, exact_softplus, -80, 80, 3},
        {"softplus near 0", 4, exact_softplus, -1, 1, 3},
    };
    for (uint32_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct worst w = {0};
        enum { STEPS = 40000 };
        for (int i = 0; i < STEPS; i++) {
            vf x;
            for (int k = 0; k < LANES; k++)
                x[k] = cases[c].from + (cases[c].to - cases[c].from) * (float)(i * LANES + k) /
                                           (float)(STEPS * LANES);
            keep_worst(&w, x, run(cases[c].function, x), cases[c].exact);
        }
        test_note("%-20s worst %.3f ulp at %.9g", cases[c].name, w.ulps, (double)w.at);
        CHECK(w.ulps <= cases[c].bound);
    }
}

TEST(functions_are_right_at_their_borders) {
    vf x = vf_set(0);
    const float in[] = {0.0f, -0.0f, -87.5f, -1000.0f, 89.0f, 1000.0f, -INFINITY, INFINITY, NAN};
    const float want_exp[] = {1, 1, 0, 0, INFINITY, INFINITY, 0, INFINITY, NAN};
    const float want_sigmoid[] = {0.5f, 0.5f, 0, 0, 1, 1, 0, 1, NAN};
    for (int i = 0; i < 9; i++) x[i] = in[i];
    vf e = vf_exp(x), s = vf_sigmoid(x), p = vf_softplus(x);
    for (int i = 0; i < 8; i++) {
        CHECK(e[i] == want_exp[i]);
        CHECK_NEAR(s[i], want_sigmoid[i], 1.3e-38);
    }
    CHECK(isnan(e[8]) && isnan(s[8]) && isnan(p[8]));
    CHECK(p[5] == 1000.0f && p[3] == 0.0f && p[7] == INFINITY);
}

TEST(sixteen_bit_floats_convert_as_their_formats_say) {
    for (uint32_t i = 0; i < 65536; i += LANES) {
        vh h;
        for (int k = 0; k < LANES; k++) h[k] = (uint16_t)(i + (uint32_t)k);
        vf b = vf_load_dtype(&h, 0, DTYPE_BF16), f = vf_load_dtype(&h, 0, DTYPE_F16);
        vh back = vf_to_bf16(b);
        for (int k = 0; k < LANES; k++) {
            uint32_t u = i + (uint32_t)k, bits = u << 16, exponent = u >> 10 & 31,
                     fraction = u & 1023;
            float want;
            memcpy(&want, &bits, sizeof want);
            CHECK(isnan(want) ? isnan(b[k]) : b[k] == want);
            if (!isnan(want)) CHECK_EQ(back[k], u);
            double half = exponent ? ldexp(1 + fraction / 1024.0, (int)exponent - 15)
                                   : ldexp(fraction / 1024.0, -14);
            if (exponent == 31) half = fraction ? NAN : INFINITY;
            if (u & 0x8000) half = -half;
            CHECK(isnan(half) ? isnan(f[k]) : (double)f[k] == half);
        }
    }
    vf tie = vf_set(0);
    tie[0] = 1 + 0x1p-8f;            // half way: to the even one
    tie[1] = 1 + 0x1p-7f + 0x1p-8f;  // half way above an odd one
    tie[2] = 1 + 0x1p-8f + 0x1p-20f; // just above half way
    tie[3] = FLT_MAX;
    vh r = vf_to_bf16(tie);
    CHECK_EQ(r[0], 0x3f80);
    CHECK_EQ(r[1], 0x3f82);
    CHECK_EQ(r[2], 0x3f81);
    CHECK_EQ(r[3], 0x7f80);
}

TEST(many_sums_at_once_are_the_sums_one_by_one) {
    vf v[16];
    vn folded[16];
    for (int i = 0; i < 16; i++) {
        vn part[PARTS];
        for (int k = 0; k < LANES; k++)
            v[i][k] = ldexpf(1 + (float)((i * 37 + k * 11) % 23), (i * k) % 17);
        memcpy(part, &v[i], sizeof part);
        folded[i] = vn_fold(part);
    }
    float sums[28];
    vn_sums(folded, 4, sums);
    vn_sums(folded, 8, sums + 4);
    vn_sums(folded, 16, sums + 12);
    for (int i = 0; i < 28; i++) {
        float one = vf_sum(v[i < 4 ? i : i < 12 ? i - 4 : i - 12]);
        CHECK_MEM(&one, &sums[i], sizeof one);
    }
}

TEST(sine_and_cosine_hold_for_every_angle_a_position_can_give) {
    double worst = 0;
    for (int i = 0; i < 400000; i++) {
        double x = i < 200000 ? i * 1e-4 : (double)(float)((i - 200000) * 5.2428787);
        struct sincos s = sincos_f64(x), m = sincos_f64(-x);
        double d = fmax(fabs(s.sin - sin(x)), fabs(s.cos - cos(x)));
        if (d > worst) worst = d;
        CHECK(m.sin == -s.sin && m.cos == s.cos);
    }
    test_note("worst difference %.3g", worst);
    CHECK(worst < 4.5e-16);
    CHECK(sincos_f64(0).sin == 0 && sincos_f64(0).cos == 1);
}
