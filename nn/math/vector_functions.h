/* SPDX-License-Identifier: MIT */
/*
 * exp, log, tanh, erf of the lanes of one vector. Included by the files of variants, after these have defined the
 * operations that vector_loops.h lists. Coefficients interpolate at Chebyshev's points and are rounded to f32.
 */

/* 2^n for -126 <= n <= 127. Other numbers give something. */
static inline vector power_of_two(words n)
{
    return as_vector((n + 127u) << 23);
}

static inline vector magnitude_of(vector x)
{
    return as_vector(as_words(x) & 0x7fffffffu);
}

/* x, which is not negative, with the sign of another. */
static inline vector with_sign_of(vector x, vector sign)
{
    return as_vector(as_words(x) | (as_words(sign) & 0x80000000u));
}

/*
 * x = n log 2 + r with |r| <= log(2) / 2, and exp x = 2^n (1 + r q(r)). The integer n is in the last bits of the sum
 * with 1.5 * 2^23.
 */
static inline vector exp_factor_from(vector x, vector shift, vector *r_out, words *shifted_out)
{
    vector shifted = multiply_add(x, all(0x1.715476p+0f), shift);
    vector n = shifted - shift;
    vector r = multiply_add(n, all(-0x1.62e430p-1f), x);
    r = multiply_add(n, all(0x1.05c610p-29f), r);
    vector q = multiply_add(all(0x1.6d0e18p-10f), r, all(0x1.120bf4p-7f));
    q = multiply_add(q, r, all(0x1.55551cp-5f));
    q = multiply_add(q, r, all(0x1.5554dcp-3f));
    q = multiply_add(q, r, all(0.5f));
    *r_out = r;
    *shifted_out = as_words(shifted);
    return multiply_add(q, r, all(1.0f));
}

static inline vector exp_factor(vector x, vector *r_out, words *n_out)
{
    const vector shift = all(0x1.8p23f);
    vector q = exp_factor_from(x, shift, r_out, n_out);
    *n_out = *n_out - as_words(shift);
    return q;
}

/* 2^n is multiplied in as two factors: the last product alone rounds, to subnormals too, or overflows. */
static inline vector exp_of(vector x)
{
    vector r;
    words n;
    vector q = exp_factor(clamp(x, all(-104.0f), all(89.0f)), &r, &n);
    words half = ((n + 256u) >> 1) - 128u;
    return multiply_add(q, r, all(1.0f)) * power_of_two(half) * power_of_two(n - half);
}

/* For x up to 1, with 0 below -87, where exp x is no normal number: 127 more in the sum, and its last bits are those of
   the exponent of 2^n. */
static inline vector exp_of_difference(vector x)
{
    vector r;
    words shifted;
    vector q = exp_factor_from(x, all(0x1.8000fep23f), &r, &shifted);
    vector result = multiply_add(q, r, all(1.0f)) * as_vector(shifted << 23);
    return choose(is_less(x, all(-87.0f)), all(0.0f), result);
}

/* x = m 2^e with m from sqrt(1/2) to sqrt 2, f = m - 1, and log x = e log 2 + f - f^2 / 2 + f^3 q(f). */
static inline vector log_of(vector x)
{
    mask is_small = is_less(x, all(0x1p-126f));
    vector scaled = choose(is_small, x * all(0x1p23f), x);
    vector bias = choose(is_small, all(150.0f), all(127.0f));
    /* 0x3f3504f3 are the bits of sqrt(1/2), where the exponent now steps. */
    words moved = as_words(scaled) + (0x3f800000u - 0x3f3504f3u);
    vector e = as_vector((moved >> 23) | 0x4b000000u) - all(0x1p23f) - bias;
    vector f = as_vector((moved & 0x7fffffu) + 0x3f3504f3u) - all(1.0f);
    vector q = multiply_add(all(0x1.1d8ea4p-4f), f, all(-0x1.d635bcp-4f));
    q = multiply_add(q, f, all(0x1.dea282p-4f));
    q = multiply_add(q, f, all(-0x1.fcf4c6p-4f));
    q = multiply_add(q, f, all(0x1.23d21ap-3f));
    q = multiply_add(q, f, all(-0x1.555b4ap-3f));
    q = multiply_add(q, f, all(0x1.999d5ap-3f));
    q = multiply_add(q, f, all(-0x1.fffffcp-3f));
    q = multiply_add(q, f, all(0x1.555554p-2f));
    vector square = f * f;
    vector low = multiply_add(square * f, q, e * all(-0x1.05c610p-29f));
    low = multiply_add(square, all(-0.5f), low);
    vector result = multiply_add(e, all(0x1.62e430p-1f), f + low);
    result = choose(is_less(x, all((float)INFINITY)), result, x); /* infinity and NaN */
    result = choose(is_less(x, all(0.0f)), all((float)NAN), result);
    return choose(is_equal(x, all(0.0f)), all(-(float)INFINITY), result);
}

/*
 * Computes 1 - 2 / (exp 2a + 1), for a >= 0.6. The low parts are what the exponential, the sum, the quotient and the
 * difference lose by rounding; with them the result is within 0.7 units in the last place. For a >= 10 it is 1.
 */
static inline vector tanh_far(vector a)
{
    vector r;
    words n;
    vector q = exp_factor(clamp(a + a, all(0.0f), all(20.0f)), &r, &n);
    vector high = multiply_add(q, r, all(1.0f));
    vector low = multiply_add(q, r, all(1.0f) - high);
    vector e = high * power_of_two(n);
    vector sum = e + all(1.0f);
    vector sum_low = (all(1.0f) - (sum - e)) + low * power_of_two(n);
    vector u = all(2.0f) / sum;
    vector u_low = multiply_add(-u, sum_low, multiply_add(-u, sum, all(2.0f))) * u * all(0.5f);
    vector result = all(1.0f) - u;
    return result + (((all(1.0f) - result) - u) - u_low);
}

static inline vector tanh_of(vector x)
{
    vector a = magnitude_of(x);
    vector s = x * x;
    vector q = multiply_add(all(0x1.2c83c0p-9f), s, all(-0x1.116a16p-7f));
    q = multiply_add(q, s, all(0x1.64a976p-6f));
    q = multiply_add(q, s, all(-0x1.ba08c4p-5f));
    q = multiply_add(q, s, all(0x1.1110eap-3f));
    q = multiply_add(q, s, all(-0x1.555556p-2f));
    vector near = multiply_add(s * q, x, x);
    return choose(is_less(a, all(0.625f)), near, with_sign_of(tanh_far(a), x));
}

/* Beyond 1: 1 - exp(log erfc |x|), with a polynomial for the logarithm. From 4 on it is 1. */
static inline vector erf_of(vector x)
{
    vector a = clamp(magnitude_of(x), all(-1.0f), all(4.0f));
    vector s = x * x;
    vector q = multiply_add(all(0x1.4a5690p-14f), s, all(-0x1.a45088p-11f));
    q = multiply_add(q, s, all(0x1.541270p-8f));
    q = multiply_add(q, s, all(-0x1.b7fabap-6f));
    q = multiply_add(q, s, all(0x1.ce2d10p-4f));
    q = multiply_add(q, s, all(-0x1.81273ep-2f));
    q = multiply_add(q, s, all(0x1.06eba8p-3f));
    vector near = multiply_add(q, x, x);
    vector l = multiply_add(all(0x1.b77830p-20f), a, all(-0x1.825ce4p-15f));
    l = multiply_add(l, a, all(0x1.38e5e6p-11f));
    l = multiply_add(l, a, all(-0x1.37ecc6p-8f));
    l = multiply_add(l, a, all(0x1.b0e246p-6f));
    l = multiply_add(l, a, all(-0x1.c2e356p-4f));
    l = multiply_add(l, a, all(-0x1.437eb4p-1f));
    l = multiply_add(l, a, all(-0x1.2156fap+0f));
    l = multiply_add(l, a, all(0x1.4fb068p-12f));
    vector far = all(1.0f) - exp_of(l);
    return choose(is_less(a, all(1.0f)), near, with_sign_of(far, x));
}

static inline vector sigmoid_of(vector x)
{
    return all(1.0f) / (all(1.0f) + exp_of(-x));
}

static inline vector silu_of(vector x)
{
    return x / (all(1.0f) + exp_of(-x));
}

/* The normal distribution. */
static inline vector distribution_of(vector x)
{
    return (all(1.0f) + erf_of(x * all(0x1.6a09e6p-1f))) * all(0.5f);
}

static inline vector gelu_of(vector x)
{
    return x * distribution_of(x);
}

/* (1 + tanh u) / 2 is sigmoid(2 u). |u| is limited to 16: beyond, it is 0 or 1, and polynomials could overflow. */
static inline vector clamp_for_gelu(vector x)
{
    return clamp(x, all(-16.0f), all(16.0f));
}

static inline vector gelu_tanh_gate(vector x)
{
    vector cube = x * x * x;
    return sigmoid_of(multiply_add(cube, all(0.044715f), x) * all(0x1.988454p+0f)); /* 2 sqrt(2 / pi) */
}

static inline vector gelu_tanh_of(vector x)
{
    return x * gelu_tanh_gate(clamp_for_gelu(x));
}

/* Gradients: g times the derivative. */

static inline vector tanh_gradient(vector g, vector y)
{
    return g * (all(1.0f) - y * y);
}

static inline vector sigmoid_gradient(vector g, vector y)
{
    return g * (y * (all(1.0f) - y));
}

static inline vector silu_gradient(vector g, vector x)
{
    vector s = sigmoid_of(x);
    return g * (s * multiply_add(x, all(1.0f) - s, all(1.0f)));
}

static inline vector gelu_gradient(vector g, vector x)
{
    vector density = all(0x1.988454p-2f) * exp_of(x * x * all(-0.5f)); /* 1 / sqrt(2 pi) at 0 */
    return g * (distribution_of(x) + x * density);
}

static inline vector gelu_tanh_gradient(vector g, vector x)
{
    vector c = clamp_for_gelu(x);
    vector s = gelu_tanh_gate(c);
    vector slope = multiply_add(c * c, all(3 * 0.044715f), all(1.0f)) * all(0x1.988454p+0f);
    return g * multiply_add(c * slope, s * (all(1.0f) - s), s);
}
