/* SPDX-License-Identifier: MIT */
/*
 * Random numbers as functions of their position; see draws.h. Philox computes one block in each lane (vector_draws.h).
 * Normal numbers are made in two passes: first all of a chunk with the formula for the middle of the distribution,
 * which has no branches; then the seventh of them that lies in the tails is computed again.
 */
#include "math/draws.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "math/vector.h"

#if FLT_EVAL_METHOD != 0
#error "bits of draws need float and double arithmetic without extra precision"
#endif

/* Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011 ------------ */

#define MULTIPLIER_0 UINT64_C(0xD2511F53)
#define MULTIPLIER_1 UINT64_C(0xCD9E8D57)
#define KEY_STEP_0 UINT32_C(0x9E3779B9)
#define KEY_STEP_1 UINT32_C(0xBB67AE85)

enum {
    N_ROUNDS = 10,
    WORDS = 4 /* of a block */
};

static uint32_t low_half(uint64_t number)
{
    return (uint32_t)(number & UINT32_MAX);
}

static uint32_t high_half(uint64_t number)
{
    return (uint32_t)(number >> 32);
}

void nn_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words_out[4])
{
    uint32_t c[WORDS] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t k[2] = {key[0], key[1]};
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t product_0 = MULTIPLIER_0 * c[0];
        uint64_t product_1 = MULTIPLIER_1 * c[2];
        c[0] = high_half(product_1) ^ c[1] ^ k[0];
        c[1] = low_half(product_1);
        c[2] = high_half(product_0) ^ c[3] ^ k[1];
        c[3] = low_half(product_0);
        k[0] += KEY_STEP_0;
        k[1] += KEY_STEP_1;
    }
    memcpy(words_out, c, sizeof(c));
}

static void draw_block(const struct nn_sequence *sequence, uint64_t block, uint32_t *words)
{
    const uint32_t counter[WORDS] = {low_half(sequence->sample), high_half(sequence->sample), low_half(block),
                                     high_half(block)};
    nn_philox(counter, sequence->key, words);
}

struct nn_sequence nn_sequence_of(const shoal_nn_draws *draws)
{
    const uint32_t counter[WORDS] = {low_half(draws->stream), high_half(draws->stream), low_half(draws->step),
                                     high_half(draws->step)};
    const uint32_t seed[2] = {low_half(draws->seed), high_half(draws->seed)};
    uint32_t words[WORDS];
    nn_philox(counter, seed, words);
    return (struct nn_sequence){.key = {words[0], words[1]}, .sample = draws->sample};
}

void nn_draw_words(const struct nn_sequence *sequence, uint64_t first, size_t count, uint32_t *words)
{
    while (count > 0) {
        size_t skipped = (size_t)(first % WORDS);
        size_t n = WORDS * NN_PHILOX_BLOCKS;
        if (skipped == 0 && count >= n) {
            nn_vectors()->philox(sequence->key, sequence->sample, first / WORDS, words);
        } else {
            uint32_t block[WORDS];
            n = WORDS - skipped < count ? WORDS - skipped : count;
            draw_block(sequence, first / WORDS, block);
            memcpy(words, block + skipped, n * sizeof(block[0]));
        }
        words += n;
        first += n;
        count -= n;
    }
}

/* Numbers in the unit interval -------------------------------------------------------------------------- */

/* 64 bits of element i, of which the words lie one after the other. */
static uint64_t pair_of(const uint32_t *words, size_t i)
{
    return ((uint64_t)words[2 * i + 1] << 32) | words[2 * i];
}

/* [0, 1), from 24 or 53 bits. */
static void uniform_units(size_t count, const uint32_t *restrict words, bool is_wide, double *restrict units)
{
    for (size_t i = 0; i < count && !is_wide; i++) {
        units[i] = (double)(int32_t)(words[i] >> 8) * 0x1p-24;
    }
    for (size_t i = 0; i < count && is_wide; i++) {
        units[i] = (double)(int64_t)(pair_of(words, i) >> 11) * 0x1p-53;
    }
}

/* (0, 1), symmetric around 1/2, from 32 or 52 bits: half a step away from both ends. */
static void open_units(size_t count, const uint32_t *restrict words, bool is_wide, double *restrict units)
{
    for (size_t i = 0; i < count && !is_wide; i++) {
        units[i] = ((double)words[i] + 0.5) * 0x1p-32;
    }
    for (size_t i = 0; i < count && is_wide; i++) {
        units[i] = ((double)(int64_t)(pair_of(words, i) >> 12) + 0.5) * 0x1p-52;
    }
}

/* The inverse of the normal distribution: M. J. Wichura, Algorithm AS 241, PPND16, Applied Statistics 37, 1988 ----
   */

enum {
    N_COEFFICIENTS = 8
};

struct ratio {
    double above[N_COEFFICIENTS]; /* from the highest power to the lowest */
    double below[N_COEFFICIENTS];
};

static const struct ratio middle = {
    .above = {2.5090809287301226727e+3, 3.3430575583588128105e+4, 6.7265770927008700853e+4,
              4.5921953931549871457e+4, 1.3731693765509461125e+4, 1.9715909503065514427e+3,
              1.3314166789178437745e+2, 3.3871328727963666080e+0},
    .below = {5.2264952788528545610e+3, 2.8729085735721942674e+4, 3.9307895800092710610e+4,
              2.1213794301586595867e+4, 5.3941960214247511077e+3, 6.8718700749205790830e+2,
              4.2313330701600911252e+1, 1.0}};

static const struct ratio tail = {
    .above = {7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
              1.27045825245236838258e+0, 3.64784832476320460504e+0, 5.76949722146069140550e+0,
              4.63033784615654529590e+0, 1.42343711074968357734e+0},
    .below = {1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
              1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e+0,
              2.05319162663775882187e+0, 1.0}};

static const struct ratio far_tail = {
    .above = {2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
              2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e+0,
              5.46378491116411436990e+0, 6.65790464350110377720e+0},
    .below = {2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
              7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
              5.99832206555887937690e-1, 1.0}};

#define MIDDLE_HALF_WIDTH 0.425
#define MIDDLE_SQUARE 0.180625

static inline double polynomial(const double *coefficients, double x)
{
    double value = coefficients[0];
    for (int i = 1; i < N_COEFFICIENTS; i++) {
        value = value * x + coefficients[i];
    }
    return value;
}

/*
 * The natural logarithm of a positive normal number, within about one unit in the last place: x = m * 2^e with m
 * between sqrt(1/2) and sqrt(2), and log m = 2 (s + s^3 / 3 + s^5 / 5 + ...) with s = (m - 1) / (m + 1), |s| < 0.172.
 */
static double log_of(double x)
{
    static const double ln2_high = 0x1.62e42feep-1; /* times any exponent it is exact */
    static const double ln2_low = 0x1.a39ef35793c76p-33;
    static const double odd[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                                 1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
    uint64_t bits;
    double m;
    memcpy(&bits, &x, sizeof(bits));
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & UINT64_C(0xfffffffffffff)) | UINT64_C(0x3ff0000000000000);
    memcpy(&m, &bits, sizeof(m));
    if (m > 0x1.6a09e667f3bcdp0) { /* sqrt(2) */
        m *= 0.5;
        exponent++;
    }
    double s = (m - 1.0) / (m + 1.0);
    double square = s * s;
    double series = 0.0;
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        series = square * (odd[i] + series);
    }
    double twice = 2.0 * s;
    double e = (double)exponent;
    return e * ln2_high + (twice + (twice * series + e * ln2_low));
}

/* Beside the middle. `q` is the unit minus 1/2. */
static double normal_in_tail(double unit, double q)
{
    double r = sqrt(-log_of(q < 0 ? unit : 1.0 - unit));
    const struct ratio *ratio = r <= 5.0 ? &tail : &far_tail;
    double x = r <= 5.0 ? r - 1.6 : r - 5.0;
    double z = polynomial(ratio->above, x) / polynomial(ratio->below, x);
    return q < 0 ? -z : z;
}

static void normals(size_t count, const double *restrict units, double *restrict z)
{
    for (size_t i = 0; i < count; i++) {
        double q = units[i] - 0.5;
        double r = MIDDLE_SQUARE - q * q;
        z[i] = polynomial(middle.above, r) * q / polynomial(middle.below, r);
    }
    for (size_t i = 0; i < count; i++) {
        double q = units[i] - 0.5;
        if (q > MIDDLE_HALF_WIDTH || q < -MIDDLE_HALF_WIDTH) {
            z[i] = normal_in_tail(units[i], q);
        }
    }
}

/* Laws -------------------------------------------------------------------------------------------------- */

double nn_leaky_gain(double slope)
{
    return sqrt(2.0 / (1.0 + slope * slope));
}

/* The fans of a parameter without elements may be 0; nothing is drawn for it. */
static double std_by_fan(const shoal_nn_distribution *distribution, const int64_t *shape, int n_dims)
{
    bool is_xavier = distribution->kind == SHOAL_NN_KIND_XAVIER_UNIFORM ||
                     distribution->kind == SHOAL_NN_KIND_XAVIER_NORMAL;
    double field = 1;
    for (int i = 2; i < n_dims; i++) {
        field *= (double)shape[i];
    }
    double fan_in = (double)shape[1] * field;
    double fan_out = (double)shape[0] * field;
    double fan = distribution->fan == SHOAL_NN_FAN_IN ? fan_in : fan_out;
    return is_xavier ? distribution->gain * sqrt(2.0 / (fan_in + fan_out)) : distribution->gain / sqrt(fan);
}

void nn_compute_law(const shoal_nn_distribution *distribution, const int64_t *shape, int n_dims,
                    struct nn_law *law_out)
{
    if (distribution->kind == SHOAL_NN_KIND_UNIFORM) {
        *law_out =
            (struct nn_law){.shift = distribution->low, .scale = distribution->high - distribution->low};
        return;
    }
    if (distribution->kind == SHOAL_NN_KIND_NORMAL) {
        *law_out =
            (struct nn_law){.is_normal = true, .shift = distribution->mean, .scale = distribution->std};
        return;
    }
    double std = std_by_fan(distribution, shape, n_dims);
    double bound = sqrt(3.0) * std;
    bool is_normal = distribution->kind == SHOAL_NN_KIND_XAVIER_NORMAL ||
                     distribution->kind == SHOAL_NN_KIND_KAIMING_NORMAL;
    *law_out = is_normal ? (struct nn_law){.is_normal = true, .scale = std}
                         : (struct nn_law){.shift = -bound, .scale = bound + bound};
}

/* Elements ---------------------------------------------------------------------------------------------- */

static void store_floats(size_t count, const struct nn_law *law, const double *restrict x, float *restrict to)
{
    for (size_t i = 0; i < count; i++) {
        to[i] = (float)(law->shift + law->scale * x[i]);
    }
}

static void store_doubles(size_t count, const struct nn_law *law, const double *restrict x,
                          double *restrict to)
{
    for (size_t i = 0; i < count; i++) {
        to[i] = law->shift + law->scale * x[i];
    }
}

void nn_draw_reals(const struct nn_sequence *sequence, const struct nn_law *law, shoal_dtype real,
                   uint64_t first, size_t count, void *to)
{
    uint32_t words[2 * NN_DRAWS_CHUNK] = {0}; /* an analyzer cannot know that all are drawn */
    double units[NN_DRAWS_CHUNK];
    double z[NN_DRAWS_CHUNK];
    bool is_wide = real == SHOAL_F64;
    nn_draw_words(sequence, is_wide ? 2 * first : first, is_wide ? 2 * count : count, words);
    if (law->is_normal) {
        open_units(count, words, is_wide, units);
        normals(count, units, z);
    } else {
        uniform_units(count, words, is_wide, z);
    }
    if (is_wide) {
        store_doubles(count, law, z, to);
    } else {
        store_floats(count, law, z, to);
    }
}
