/* SPDX-License-Identifier: MIT */
/* Vectors: every function within its bound of libm's f64, and the bits of every variant those of plain C. */
#include "nn/math/vector.h"

#include "nn/math/draws.h"
#include "nn/math/halves.h"
#include "unit/nn/fixture.h"

#define N_GRID 8192
#define N_FRACTIONS 32
/* Lengths around every width, and one of several blocks of sums. */
static const size_t lengths[] = {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 511, 512, 513, 1537};
#define LONGEST 1537

typedef double (*reference)(double x);

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu(double x)
{
    return x * sigmoid(x);
}

static double gelu(double x)
{
    return x * erfc(-x * M_SQRT1_2) / 2;
}

static double gelu_tanh(double x)
{
    return x * sigmoid(2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}

/* What tests expect, in units in the last place of the result, or of `scale` where that is larger. */
struct accuracy {
    const char *name;
    size_t member;
    reference expected;
    double bound;
    double scale;
};

#define FUNCTION(name, bound, scale)                                      \
    {                                                                     \
#name, offsetof(struct nn_vector_table, name), name, bound, scale \
    }
static const struct accuracy accuracies[] = {
    FUNCTION(exp, 1, 0),      FUNCTION(log, 1, 0),           FUNCTION(tanh, 0.75, 0),
    FUNCTION(erf, 2, 0),      FUNCTION(sigmoid, 2.5, 1e-30), FUNCTION(silu, 3, 1e-30),
    FUNCTION(gelu, 2.5, 1.0), FUNCTION(gelu_tanh, 2.5, 1.0),
};

static nn_vector_function function_of(const struct nn_vector_table *table, size_t member)
{
    nn_vector_function function;
    memcpy(&function, (const char *)table + member, sizeof(function));
    return function;
}

static double ulp_of(double value, double scale)
{
    double size = fabs(value) > scale ? fabs(value) : scale;
    int exponent = size > 0 ? ilogb(size) : -126;
    return ldexp(1, (exponent < -126 ? -126 : exponent) - 23);
}

/* Every exponent with both signs and a walk through fractions. */
static void check_accuracy(const struct nn_vector_table *table, const struct accuracy *row)
{
    static float x[N_GRID];
    static float y[N_GRID];
    double worst = 0;
    float worst_x = 0;
    for (uint32_t top = 0; top < 0x10000; top += N_GRID / N_FRACTIONS) {
        for (uint32_t i = 0; i < N_GRID; i++) {
            x[i] = nn_float_of(((top + i / N_FRACTIONS) << 16) + i % N_FRACTIONS * (0xffff / N_FRACTIONS));
        }
        function_of(table, row->member)(N_GRID, x, y);
        for (uint32_t i = 0; i < N_GRID; i++) {
            double expected = row->expected((double)x[i]);
            if (isnan(x[i]) || isnan(expected) || (double)fabsf(x[i]) > 1e18) {
                continue;
            }
            double distance = (double)y[i] - expected;
            bool is_equal = (double)y[i] == (double)(float)expected;
            double error = is_equal ? 0 : fabs(distance) / ulp_of(expected, row->scale);
            if (!(error <= worst)) {
                worst = error;
                worst_x = x[i];
            }
        }
    }
    if (!(worst <= row->bound)) {
        test_failed(__FILE__, __LINE__, "%s %s: %g units at %a", table->name, row->name, worst,
                    (double)worst_x);
    }
}

TEST(functions_are_accurate)
{
    for (size_t i = 0; i < sizeof(accuracies) / sizeof(accuracies[0]); i++) {
        check_accuracy(nn_vectors(), &accuracies[i]);
    }
}

/* Variants ---------------------------------------------------------------------------------------------- */

/* Numbers of every size, some special, made from a seed. */
static void fill_floats(struct test_random *random, size_t n, bool has_specials, float *to)
{
    const float specials[] = {0.0f,       -0.0f,     (float)INFINITY, -(float)INFINITY,
                              (float)NAN, 0x1p-149f, -0x1p-130f,      0x1p127f};
    for (size_t i = 0; i < n; i++) {
        double size = ldexp(2 * test_random_unit(random) - 1, (int)test_random_below(random, 12) - 4);
        to[i] = (float)size;
        if (has_specials && test_random_below(random, 8) == 0) {
            to[i] = specials[test_random_below(random, 8)];
        }
    }
}

/* Equal bits, or both NaN. */
static void check_same(const char *variant, const char *name, size_t n, const float *actual,
                       const float *expected)
{
    for (size_t i = 0; i < n; i++) {
        if (nn_bits_of(actual[i]) != nn_bits_of(expected[i]) && !(isnan(actual[i]) && isnan(expected[i]))) {
            test_failed(__FILE__, __LINE__, "%s %s: element %zu of %zu is %a, in plain C %a", variant, name,
                        i, n, (double)actual[i], (double)expected[i]);
            return;
        }
    }
}

static bool is_same_double(double a, double b)
{
    return memcmp(&a, &b, sizeof(a)) == 0 || (isnan(a) && isnan(b));
}

struct arrays {
    float in[4][LONGEST];
    float out[2][3][LONGEST + 16];
    double sums[2][LONGEST];
    uint16_t halves[2][LONGEST + 16];
};

#define MEMBER(name)                                  \
    {                                                 \
#name, offsetof(struct nn_vector_table, name) \
    }
static const struct {
    const char *name;
    size_t member;
} functions[] = {MEMBER(exp),     MEMBER(log),  MEMBER(tanh), MEMBER(erf),
                 MEMBER(sigmoid), MEMBER(silu), MEMBER(gelu), MEMBER(gelu_tanh)},
  gradients[] = {MEMBER(tanh_backward), MEMBER(sigmoid_backward), MEMBER(silu_backward),
                 MEMBER(gelu_backward), MEMBER(gelu_tanh_backward)};

/* All variants have the bits of the first; an element behind the end stays as it is. */
static void check_functions(struct arrays *a, size_t n, const struct nn_vector_table *const tables[2])
{
    for (size_t f = 0; f < sizeof(functions) / sizeof(functions[0]); f++) {
        for (int t = 0; t < 2; t++) {
            a->out[t][0][n] = 123.0f;
            function_of(tables[t], functions[f].member)(n, a->in[0], a->out[t][0]);
            CHECK(a->out[t][0][n] == 123.0f);
        }
        check_same(tables[1]->name, functions[f].name, n, a->out[1][0], a->out[0][0]);
    }
    for (size_t f = 0; f < sizeof(gradients) / sizeof(gradients[0]); f++) {
        for (int t = 0; t < 2; t++) {
            nn_vector_gradient gradient;
            memcpy(&gradient, (const char *)tables[t] + gradients[f].member, sizeof(gradient));
            a->out[t][0][n] = 123.0f;
            gradient(n, a->in[0], a->in[1], a->out[t][0]);
            CHECK(a->out[t][0][n] == 123.0f);
        }
        check_same(tables[1]->name, gradients[f].name, n, a->out[1][0], a->out[0][0]);
    }
}

static void check_sums(struct arrays *a, size_t n, const struct nn_vector_table *const tables[2])
{
    double sum[2][3];
    float largest[2];
    for (int t = 0; t < 2; t++) {
        const struct nn_vector_table *table = tables[t];
        largest[t] = table->maximum(n, a->in[0]);
        sum[t][0] = table->sum(n, a->in[0]);
        sum[t][1] = table->sum_of_products(n, a->in[0], a->in[1]);
        sum[t][2] = table->sum_exp(n, a->in[0], largest[t], a->out[t][0]);
        CHECK(is_same_double(sum[t][2], table->sum_exp(n, a->in[0], largest[t], NULL)));
        table->scale(n, 0.3f, a->in[0], a->out[t][1]);
    }
    check_same(tables[1]->name, "maximum", 1, &largest[1], &largest[0]);
    check_same(tables[1]->name, "sum_exp", n, a->out[1][0], a->out[0][0]);
    check_same(tables[1]->name, "scale", n, a->out[1][1], a->out[0][1]);
    for (int i = 0; i < 3; i++) {
        CHECK(is_same_double(sum[0][i], sum[1][i]));
    }
}

static void check_steps(struct arrays *a, size_t n, const struct nn_vector_table *const tables[2])
{
    const struct nn_adamw_factors factors = {1e-3, 0.9, 0.1, 0.99, 0.01, 3e-4, 0.5, 1e-8};
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < 3; i++) {
            memcpy(a->out[t][i], a->in[i + 1], sizeof(a->in[0]));
            a->out[t][i][n] = 123.0f;
        }
        tables[t]->adamw(n, &factors, a->in[0], a->out[t][0], a->out[t][1], a->out[t][2]);
        tables[t]->sgd(n, 0.1, a->in[0], a->out[t][0]);
        CHECK(a->out[t][0][n] == 123.0f && a->out[t][1][n] == 123.0f && a->out[t][2][n] == 123.0f);
    }
    for (int i = 0; i < 3; i++) {
        check_same(tables[1]->name, "adamw and sgd", n, a->out[1][i], a->out[0][i]);
    }
}

static void check_norms(struct arrays *a, size_t n, const struct nn_vector_table *const tables[2])
{
    for (int has_factors = 0; has_factors < 2 && n > 0; has_factors++) {
        const float *weight = has_factors ? a->in[2] : NULL;
        const float *bias = has_factors ? a->in[3] : NULL;
        for (int t = 0; t < 2; t++) {
            const struct nn_vector_table *table = tables[t];
            memset(a->sums[t], 0, sizeof(a->sums[t]));
            table->norm(n, 1e-5, a->in[0], weight, bias, a->out[t][0]);
            table->norm_backward(n, 1e-5, a->in[1], a->in[0], weight, a->out[t][1]);
            table->norm_weight_backward(n, 1e-5, a->in[1], a->in[0], a->sums[t]);
            table->rms_norm(n, 1e-5, a->in[0], weight, a->out[t][2]);
            table->rms_norm_weight_backward(n, 1e-5, a->in[1], a->in[0], a->sums[t]);
        }
        for (int i = 0; i < 3; i++) {
            check_same(tables[1]->name, "norm", n, a->out[1][i], a->out[0][i]);
        }
        for (size_t i = 0; i < n; i++) {
            CHECK(is_same_double(a->sums[1][i], a->sums[0][i]));
        }
        tables[0]->rms_norm_backward(n, 1e-5, a->in[1], a->in[0], weight, a->out[0][0]);
        tables[1]->rms_norm_backward(n, 1e-5, a->in[1], a->in[0], weight, a->out[1][0]);
        check_same(tables[1]->name, "rms_norm_backward", n, a->out[1][0], a->out[0][0]);
    }
}

static void check_halves(struct arrays *a, size_t n, const struct nn_vector_table *const tables[2])
{
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        for (int t = 0; t < 2; t++) {
            a->halves[t][n] = 99;
            (is_bf16 ? tables[t]->to_bf16 : tables[t]->to_f16)(n, a->in[0], a->halves[t]);
            (is_bf16 ? tables[t]->from_bf16 : tables[t]->from_f16)(n, a->halves[t], a->out[t][0]);
            CHECK(a->halves[t][n] == 99);
        }
        check_same(tables[1]->name, is_bf16 ? "bf16" : "f16", n, a->out[1][0], a->out[0][0]);
    }
}

static struct arrays arrays;

TEST(variants_have_the_same_bits)
{
    struct test_random random = test_random_begin(1);
    for (size_t v = 1; nn_vectors_at(v); v++) {
        const struct nn_vector_table *const tables[2] = {nn_vectors_at(0), nn_vectors_at(v)};
        for (size_t i = 0; i < 2 * sizeof(lengths) / sizeof(lengths[0]) && !test_has_failed(); i++) {
            size_t n = lengths[i / 2];
            for (int k = 0; k < 4; k++) {
                fill_floats(&random, LONGEST, /*has_specials=*/i % 2 == 1, arrays.in[k]);
            }
            check_functions(&arrays, n, tables);
            check_sums(&arrays, n, tables);
            check_steps(&arrays, n, tables);
            check_norms(&arrays, n, tables);
            check_halves(&arrays, n, tables);
        }
    }
    CHECK(nn_vectors() != NULL && nn_vectors_at(0) != NULL);
}

/* All 65536 halves, and the floats beside the middle between two. */
TEST(variants_convert_all_halves_alike)
{
    static uint16_t halves[2][65536];
    static float floats[2][65536];
    for (size_t v = 1; nn_vectors_at(v); v++) {
        const struct nn_vector_table *const tables[2] = {nn_vectors_at(0), nn_vectors_at(v)};
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            for (uint32_t delta = 0; delta < 4; delta++) {
                for (uint32_t i = 0; i < 65536; i++) {
                    halves[0][i] = (uint16_t)i;
                }
                for (int t = 0; t < 2; t++) {
                    (is_bf16 ? tables[t]->from_bf16 : tables[t]->from_f16)(65536, halves[0], floats[t]);
                }
                CHECK(memcmp(floats[0], floats[1], sizeof(floats[0])) == 0);
                for (uint32_t i = 0; i < 65536; i++) {
                    uint32_t middle = is_bf16 ? 0x7fff : 0xfff;
                    floats[0][i] =
                        nn_float_of(nn_bits_of(floats[0][i]) + (delta > 0 ? middle + delta - 1 : 0));
                }
                for (int t = 0; t < 2; t++) {
                    (is_bf16 ? tables[t]->to_bf16 : tables[t]->to_f16)(65536, floats[0], halves[t]);
                }
                CHECK(memcmp(halves[0], halves[1], sizeof(halves[0])) == 0);
            }
        }
    }
}

/* Rows --------------------------------------------------------------------------------------------------- */

TEST(a_nan_is_the_maximum)
{
    float x[40];
    for (size_t v = 0; nn_vectors_at(v); v++) {
        for (int place = 0; place < 40; place++) {
            for (int i = 0; i < 40; i++) {
                x[i] = i == place ? (float)NAN : (float)(i % 7) - 3;
            }
            CHECK(isnan(nn_vectors_at(v)->maximum(40, x)));
            x[place] = 50;
            CHECK(nn_vectors_at(v)->maximum(40, x) == 50);
        }
        CHECK(nn_vectors_at(v)->maximum(0, x) == -(float)INFINITY);
    }
}

TEST(softmax_rows)
{
    struct test_random random = test_random_begin(3);
    static float x[LONGEST];
    static float y[LONGEST];
    static float logs[LONGEST];
    for (size_t i = 1; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        size_t n = lengths[i];
        double sum = 0;
        fill_floats(&random, n, /*has_specials=*/false, x);
        for (size_t k = 0; k < n; k++) {
            sum += exp((double)x[k]);
        }
        double log_sum = nn_softmax_row(n, x, y);
        nn_log_softmax_row(n, x, logs);
        CHECK(fabs(log_sum - log(sum)) <= 1e-5);
        for (size_t k = 0; k < n; k++) {
            CHECK(fabs((double)y[k] - exp((double)x[k]) / sum) <= 1e-5 * (double)y[k] + 1e-30);
            CHECK(fabs((double)logs[k] - ((double)x[k] - log(sum))) <= 1e-5 * (1 + fabs((double)logs[k])));
        }
    }
}

/* Blocks of Philox in vectors are those of nn_philox, one by one, also where the number of a block carries. */
TEST(variants_draw_the_same_words)
{
    const uint32_t key[2] = {0x12345678, 0x9abcdef0};
    const uint64_t sample = UINT64_C(0xfedcba9876543210);
    const uint64_t firsts[] = {0, 5, UINT64_C(0xfffffff0), UINT64_MAX - 7};
    uint32_t words[4 * NN_PHILOX_BLOCKS];
    for (size_t i = 0; nn_vectors_at(i); i++) {
        for (size_t f = 0; f < sizeof(firsts) / sizeof(firsts[0]); f++) {
            nn_vectors_at(i)->philox(key, sample, firsts[f], words);
            for (uint64_t block = 0; block < NN_PHILOX_BLOCKS; block++) {
                uint64_t number = firsts[f] + block;
                uint32_t expected[4];
                const uint32_t counter[4] = {(uint32_t)sample, (uint32_t)(sample >> 32), (uint32_t)number,
                                             (uint32_t)(number >> 32)};
                nn_philox(counter, key, expected);
                CHECK_BYTES(&words[4 * block], expected, sizeof(expected));
            }
        }
    }
}
