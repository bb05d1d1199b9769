/* SPDX-License-Identifier: MIT */
/*
 * Draws: the published vectors of Philox, bits that were computed by another program, distributions, and that neither
 * ranges, parts, strides nor floating-point modes change anything.
 */
#include <float.h>
#include <stdlib.h>

#include "fixtures/fp_modes.h"
#include "nn/math/draws.h"
#include "shoal_nn/random.h"
#include "unit/nn/fixture.h"

static const shoal_nn_draws somewhere = {
    .seed = 0x0123456789abcdef, .stream = 0xfedcba9876543210, .step = 12345678901, .sample = 77};
static const shoal_nn_distribution unit_uniform = SHOAL_NN_UNIFORM(0, 1);
static const shoal_nn_distribution unit_normal = SHOAL_NN_NORMAL(0, 1);

/* Elements first .. first + count - 1 of an array. */
static shoal_status fill_range(const shoal_nn_draws *draws, const shoal_nn_distribution *distribution,
                               shoal_dtype dtype, uint64_t first, size_t count, void *data)
{
    const int64_t shape[1] = {(int64_t)(first + count)};
    const shoal_nn_part part = {
        .shape = shape, .n_dims = 1, .offset = (int64_t)first, .length = (int64_t)count};
    return shoal_nn_fill_part(draws, distribution, dtype, &part, data);
}

/* Words ------------------------------------------------------------------------------------------------- */

/* Random123, tests/kat_vectors: philox4x32 10. */
TEST(philox_gives_the_published_vectors)
{
    static const struct {
        uint32_t counter[4];
        uint32_t key[2];
        uint32_t words[4];
    } rows[] = {{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                 {0xffffffff, 0xffffffff},
                 {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                 {0xa4093822, 0x299f31d0},
                 {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t words[4];
        nn_philox(rows[i].counter, rows[i].key, words);
        CHECK_BYTES(words, rows[i].words, sizeof words);
        memcpy(words, rows[i].counter, sizeof words);
        nn_philox(words, rows[i].key, words);
        CHECK_BYTES(words, rows[i].words, sizeof words);
    }
}

TEST(words_are_those_of_the_definition)
{
    enum {
        N = 1000
    };
    static uint32_t words[N];
    const uint32_t place[4] = {0x76543210, 0xfedcba98, 0xdfdc1c35, 0x2};
    const uint32_t seed[2] = {0x89abcdef, 0x01234567};
    uint32_t key[4];
    nn_philox(place, seed, key);
    REQUIRE_OK(shoal_nn_words(&somewhere, 0, N, words));
    for (uint32_t i = 0; i < N; i += 4) {
        uint32_t block[4];
        nn_philox((const uint32_t[]){77, 0, i / 4, 0}, key, block);
        CHECK_BYTES(words + i, block, sizeof block);
    }
    /* Blocks are counted in 64 bits. */
    uint32_t block[4];
    REQUIRE_OK(shoal_nn_words(&somewhere, UINT64_C(1) << 40, 4, words));
    nn_philox((const uint32_t[]){77, 0, 0, 1 << 6}, key, block);
    CHECK_BYTES(words, block, sizeof block);
    REQUIRE_OK(shoal_nn_words(&somewhere, (UINT64_C(1) << 63) - 2, 2, words));
}

/* FNV-1a, 64 bits: vectors of its authors. */
TEST(streams_of_names)
{
    CHECK(shoal_nn_stream("") == UINT64_C(0xcbf29ce484222325));
    CHECK(shoal_nn_stream(NULL) == shoal_nn_stream(""));
    CHECK(shoal_nn_stream("a") == UINT64_C(0xaf63dc4c8601ec8c));
    CHECK(shoal_nn_stream("foobar") == UINT64_C(0x85944171f73967e8));
    CHECK(shoal_nn_stream("\xff") == (UINT64_C(0xcbf29ce484222325) ^ 0xff) * UINT64_C(0x100000001b3));
}

/* Bits -------------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const void *data, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Computed by a program that was written from the header; little-endian, as all our machines are. */
TEST(bits_are_those_of_another_program)
{
    static const uint32_t words[] = {0x4727a3a5, 0x19335bb6, 0xe1b3772f, 0x7b582420,
                                     0xf0d29c31, 0x2e6f8f4b, 0x0432274a, 0x35df908d};
    static const uint32_t uniform_f32[] = {0xbee36174, 0xbf4d994a, 0x3f4366ee, 0xbd14fb80,
                                           0x3f61a538, 0xbf2320e2, 0xbf779bb2, 0xbf1440e0};
    static const uint64_t uniform_f64[] = {0xbfe9b329126e3618, 0xbfa29f6f7c793240, 0xbfe4641c2d03cb5a,
                                           0xbfe2881bdcbef378};
    static const uint32_t normal_f32[] = {0xbf2d8a64, 0xc0052ed9, 0x403774b0, 0x3ed14dab,
                                          0x4067c80d, 0xbfa8fb1a, 0xc0713fd7, 0xbf8e0d0b};
    static const uint64_t normal_f64[] = {0xc000a5db1d92fbe2, 0x3fda29b56bc19012, 0xbff51f63399abeb1,
                                          0xbff1c1a16f152670};
    const shoal_nn_distribution uniform = SHOAL_NN_UNIFORM(-1, 1);
    const shoal_nn_distribution normal = SHOAL_NN_NORMAL(0.5, 2);
    uint32_t got[8];
    CHECK_OK(shoal_nn_words(&somewhere, 0, 8, got));
    CHECK_BYTES(got, words, sizeof words);
    CHECK_OK(fill_range(&somewhere, &uniform, SHOAL_F32, 0, 8, got));
    CHECK_BYTES(got, uniform_f32, sizeof uniform_f32);
    CHECK_OK(fill_range(&somewhere, &uniform, SHOAL_F64, 0, 4, got));
    CHECK_BYTES(got, uniform_f64, sizeof uniform_f64);
    CHECK_OK(fill_range(&somewhere, &normal, SHOAL_F32, 0, 8, got));
    CHECK_BYTES(got, normal_f32, sizeof normal_f32);
    CHECK_OK(fill_range(&somewhere, &normal, SHOAL_F64, 0, 4, got));
    CHECK_BYTES(got, normal_f64, sizeof normal_f64);
}

/* What tests/fixtures/random_bits.pl prints. */
TEST(bits_of_many_draws)
{
    enum {
        N = 20000
    };
    static double data[N];
    const struct {
        const shoal_nn_distribution *distribution;
        shoal_dtype dtype;
        uint64_t hash;
    } rows[] = {{&unit_uniform, SHOAL_F32, 0x86a09e53787b51a7},
                {&unit_uniform, SHOAL_F64, 0x0bafc8675043f512},
                {&unit_normal, SHOAL_F32, 0x52ac2731e78a3049},
                {&unit_normal, SHOAL_F64, 0x040a4a3f92920281}};
    for (size_t i = 0; i < 4; i++) {
        CHECK_OK(fill_range(&somewhere, rows[i].distribution, rows[i].dtype, 0, N, data));
        uint64_t hash = hash_of(data, N * shoal_dtype_bytes(rows[i].dtype));
        if (hash != rows[i].hash) {
            test_failed(__FILE__, __LINE__, "row %zu: %016llx", i, (unsigned long long)hash);
        }
    }
}

NN_TEST(halves_are_rounded_f32)
{
    const shoal_nn_distribution normal = SHOAL_NN_NORMAL(0.1, 3);
    const shoal_dtype halves[] = {SHOAL_BF16, SHOAL_F16};
    shoal_tensor *wide = shoal_empty(INTS(1500), 1, SHOAL_F32);
    CHECK_OK(shoal_nn_fill(&somewhere, &normal, wide));
    for (size_t i = 0; i < 2; i++) {
        shoal_tensor *half = shoal_empty(INTS(1500), 1, halves[i]);
        CHECK_OK(shoal_nn_fill(&somewhere, &normal, half));
        CHECK_BYTES(shoal_data(half), shoal_data(shoal_to_dtype(wide, halves[i])), 1500 * 2);
    }
}

static void draw_all(struct outcome *outcome)
{
    static double data[700];
    const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16};
    const shoal_nn_distribution laws[] = {SHOAL_NN_UNIFORM(-0.1, 0.7),
                                          SHOAL_NN_NORMAL(0.3, 1e-20),
                                          SHOAL_NN_XAVIER_UNIFORM(1.1),
                                          SHOAL_NN_XAVIER_NORMAL(1.1),
                                          SHOAL_NN_KAIMING_UNIFORM(1.7, SHOAL_NN_FAN_IN),
                                          SHOAL_NN_KAIMING_NORMAL(1.7, SHOAL_NN_FAN_OUT)};
    const shoal_nn_part part = {INTS(7, 100), 2, 0, 0, 7};
    double gain = 0;
    outcome->n_bytes = 0;
    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < sizeof laws / sizeof laws[0]; k++) {
            CHECK_OK(shoal_nn_fill_part(&somewhere, &laws[k], dtypes[i], &part, data));
            uint64_t hash = hash_of(data, 700 * shoal_dtype_bytes(dtypes[i]));
            outcome_append(outcome, &hash, sizeof hash);
        }
    }
    CHECK_OK(shoal_nn_gain(SHOAL_NN_LEAKY_RELU, 0.1, &gain));
    outcome_append(outcome, &gain, sizeof gain);
}

TEST(no_mode_changes_bits)
{
    static struct outcome expected;
    static struct outcome actual;
    draw_all(&expected);
    for (size_t row = 0; row < FP_MODE_ROWS; row++) {
        fp_modes_begin(row);
        draw_all(&actual);
        fp_modes_end(row);
        if (memcmp(actual.bytes, expected.bytes, expected.n_bytes) != 0) {
            test_failed(__FILE__, __LINE__, "mode %s gives other bits", fp_mode_rows[row].name);
        }
    }
}

/* Distributions ----------------------------------------------------------------------------------------- */

enum {
    N_DRAWS = 100000
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double normal_distribution(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

static double uniform_distribution(double x)
{
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

/* Mean and variance within five of their deviations; Kolmogorov and Smirnov's distance below that of one in a
   thousand. */
static void check_sample(double *x, size_t n, double variance, double fourth, double mean,
                         double (*distribution)(double))
{
    double sum = 0;
    double squares = 0;
    double distance = 0;
    for (size_t i = 0; i < n; i++) {
        sum += x[i];
        squares += (x[i] - mean) * (x[i] - mean);
    }
    CHECK(fabs(sum / (double)n - mean) < 5 * sqrt(variance / (double)n));
    CHECK(fabs(squares / (double)n - variance) < 5 * sqrt((fourth - variance * variance) / (double)n));
    qsort(x, n, sizeof x[0], compare_doubles);
    for (size_t i = 0; i < n; i++) {
        double wanted = distribution(x[i]);
        distance = fmax(distance, fabs(wanted - (double)i / (double)n));
        distance = fmax(distance, fabs(wanted - (double)(i + 1) / (double)n));
    }
    CHECK(distance * sqrt((double)n) < 1.95);
}

/* Along elements, samples, steps and streams: one draw of each, or many of one. */
static void draw_along(int axis, const shoal_nn_distribution *distribution, shoal_dtype dtype, double *x)
{
    for (size_t i = 0; i < N_DRAWS; i++) {
        shoal_nn_draws draws = {.seed = 1, .stream = 2, .step = 3, .sample = 4};
        uint64_t *const axes[] = {&draws.seed, &draws.stream, &draws.step, &draws.sample};
        float single = 0;
        *axes[axis] = i;
        CHECK_OK(fill_range(&draws, distribution, dtype, 5, 1,
                            dtype == SHOAL_F64 ? (void *)&x[i] : (void *)&single));
        x[i] = dtype == SHOAL_F64 ? x[i] : (double)single;
    }
}

TEST(draws_have_their_distribution_along_every_axis)
{
    static double x[N_DRAWS];
    static float floats[N_DRAWS];
    for (int axis = 0; axis < 4; axis++) {
        const shoal_dtype dtype = axis % 2 == 0 ? SHOAL_F64 : SHOAL_F32;
        draw_along(axis, &unit_uniform, dtype, x);
        check_sample(x, N_DRAWS, 1.0 / 12, 1.0 / 80, 0.5, uniform_distribution);
        draw_along(axis, &unit_normal, dtype, x);
        check_sample(x, N_DRAWS, 1, 3, 0, normal_distribution);
    }
    CHECK_OK(fill_range(&somewhere, &unit_normal, SHOAL_F64, 0, N_DRAWS, x));
    check_sample(x, N_DRAWS, 1, 3, 0, normal_distribution);
    CHECK_OK(fill_range(&somewhere, &unit_normal, SHOAL_F32, 0, N_DRAWS, floats));
    for (size_t i = 0; i < N_DRAWS; i++) {
        x[i] = (double)floats[i];
    }
    check_sample(x, N_DRAWS, 1, 3, 0, normal_distribution);
}

/* Neighbours in any coordinate have nothing in common. */
TEST(neighbours_are_not_correlated)
{
    static double x[N_DRAWS + 1];
    static double y[N_DRAWS];
    for (int axis = 0; axis < 5; axis++) {
        shoal_nn_draws beside = somewhere;
        uint64_t *const axes[] = {&beside.seed, &beside.stream, &beside.step, &beside.sample};
        if (axis < 4) {
            *axes[axis] += 1;
        }
        CHECK_OK(fill_range(&somewhere, &unit_normal, SHOAL_F64, 0, N_DRAWS, x));
        CHECK_OK(fill_range(&beside, &unit_normal, SHOAL_F64, axis == 4, N_DRAWS, y));
        double sum = 0;
        for (size_t i = 0; i < N_DRAWS; i++) {
            sum += x[i] * y[i];
        }
        CHECK(fabs(sum) < 5 * sqrt((double)N_DRAWS));
    }
}

/* From the word to the number and back by erfc of libm. */
TEST(normals_are_the_inverse_of_their_distribution)
{
    enum {
        N = 50000
    };
    static double z[N];
    static uint32_t words[2 * N];
    CHECK_OK(shoal_nn_words(&somewhere, 0, 2 * N, words));
    CHECK_OK(fill_range(&somewhere, &unit_normal, SHOAL_F64, 0, N, z));
    for (size_t i = 0; i < N; i++) {
        uint64_t pair = ((uint64_t)words[2 * i + 1] << 32) | words[2 * i];
        double unit = ((double)(pair >> 12) + 0.5) * 0x1p-52;
        double tail = unit < 0.5 ? unit : 1 - unit;
        double found = 0.5 * erfc(fabs(z[i]) * M_SQRT1_2);
        CHECK((z[i] < 0) == (unit < 0.5));
        CHECK(fabs(found - tail) <= 2e-14 * tail);
    }
}

/* Ranges and parts -------------------------------------------------------------------------------------- */

TEST(ranges_draw_their_part)
{
    enum {
        N = 3000
    };
    static char whole[N * 8];
    static char pieces[N * 8];
    const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16};
    struct test_random random = test_random_begin(1);
    for (size_t i = 0; i < 8; i++) {
        const shoal_nn_distribution *distribution = i < 4 ? &unit_uniform : &unit_normal;
        size_t bytes = shoal_dtype_bytes(dtypes[i % 4]);
        CHECK_OK(fill_range(&somewhere, distribution, dtypes[i % 4], 0, N, whole));
        for (size_t first = 0; first < N;) {
            size_t count = test_random_below(&random, test_random_below(&random, 4) == 0 ? 900 : 7);
            count = count < N - first ? count : N - first;
            CHECK_OK(
                fill_range(&somewhere, distribution, dtypes[i % 4], first, count, pieces + first * bytes));
            first += count;
        }
        CHECK_BYTES(pieces, whole, N * bytes);
    }
}

/* The part of a whole that lies so. */
static void take_part(const float *whole, const shoal_nn_part *part, float *to)
{
    int64_t outer = 1;
    int64_t inner = 1;
    for (int i = 0; i < part->n_dims; i++) {
        outer *= i < part->dim ? part->shape[i] : 1;
        inner *= i > part->dim ? part->shape[i] : 1;
    }
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t k = 0; k < part->length * inner; k++) {
            *to++ = whole[(o * part->shape[part->dim] + part->offset) * inner + k];
        }
    }
}

TEST(parts_are_cut_from_the_whole)
{
    static float whole[6 * 35 * 7];
    static float wanted[6 * 35 * 7];
    static float got[6 * 35 * 7];
    const shoal_nn_distribution kaiming = SHOAL_NN_KAIMING_NORMAL(1, SHOAL_NN_FAN_IN);
    const int64_t *shape = INTS(6, 35, 7);
    CHECK_OK(shoal_nn_fill_part(&somewhere, &kaiming, SHOAL_F32, &(shoal_nn_part){shape, 3, 0, 0, 6}, whole));
    for (int dim = 0; dim < 3; dim++) {
        for (int64_t offset = 0; offset <= shape[dim]; offset++) {
            for (int64_t length = 0; length <= shape[dim] - offset; length++) {
                const shoal_nn_part part = {shape, 3, dim, offset, length};
                size_t bytes = 6 * 35 * 7 / (size_t)shape[dim] * (size_t)length * sizeof(float);
                CHECK_OK(shoal_nn_fill_part(&somewhere, &kaiming, SHOAL_F32, &part, length > 0 ? got : NULL));
                take_part(whole, &part, wanted);
                CHECK_BYTES(got, wanted, bytes);
            }
        }
    }
    CHECK_OK(
        shoal_nn_fill_part(&somewhere, &kaiming, SHOAL_F32, &(shoal_nn_part){INTS(0, 5), 2, 1, 2, 3}, NULL));
}

NN_TEST(tensors_of_any_strides)
{
    const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16};
    for (size_t i = 0; i < 4; i++) {
        shoal_tensor *plain = shoal_empty(INTS(5, 70), 2, dtypes[i]);
        shoal_tensor *strided = shoal_transpose(shoal_empty(INTS(70, 5), 2, dtypes[i]), 0, 1);
        uint64_t version = shoal_tensor_version(strided);
        CHECK_OK(shoal_nn_fill(&somewhere, &unit_normal, plain));
        CHECK_OK(shoal_nn_fill(&somewhere, &unit_normal, strided));
        CHECK(shoal_tensor_version(strided) > version);
        CHECK_BYTES(shoal_data(shoal_contiguous(strided)), shoal_data(plain),
                    350 * shoal_dtype_bytes(dtypes[i]));
    }
    shoal_tensor *number = shoal_empty(NULL, 0, SHOAL_F32);
    float first;
    CHECK_OK(shoal_nn_fill(&somewhere, &unit_uniform, number));
    CHECK_OK(fill_range(&somewhere, &unit_uniform, SHOAL_F32, 0, 1, &first));
    CHECK_BYTES(shoal_data(number), &first, sizeof first);
    CHECK_OK(shoal_nn_fill(&somewhere, &unit_uniform, shoal_empty(INTS(0, 3), 2, SHOAL_F32)));
    /* A leaf is written as an optimizer writes it. */
    CHECK_OK(shoal_nn_fill(&somewhere, &unit_uniform, require_grad(shoal_empty(INTS(3), 1, SHOAL_F32))));
}

/* Laws -------------------------------------------------------------------------------------------------- */

/* As PyTorch computes them, for a weight [out 20, in 30, 3, 2]. */
TEST(fans_as_in_pytorch)
{
    enum {
        COUNT = 20 * 30 * 6
    };
    static double base[2][COUNT];
    static double x[COUNT];
    const int64_t *shape = INTS(20, 30, 3, 2);
    const shoal_nn_part part = {shape, 4, 0, 0, 20};
    const double fan_in = 180;
    const double fan_out = 120;
    const struct {
        shoal_nn_distribution distribution;
        double std;
        bool is_normal;
    } rows[] = {
        {SHOAL_NN_XAVIER_UNIFORM(1.5), 1.5 * sqrt(2 / (fan_in + fan_out)), false},
        {SHOAL_NN_XAVIER_NORMAL(1.5), 1.5 * sqrt(2 / (fan_in + fan_out)), true},
        {SHOAL_NN_KAIMING_UNIFORM(2, SHOAL_NN_FAN_IN), 2 / sqrt(fan_in), false},
        {SHOAL_NN_KAIMING_UNIFORM(2, SHOAL_NN_FAN_OUT), 2 / sqrt(fan_out), false},
        {SHOAL_NN_KAIMING_NORMAL(2, SHOAL_NN_FAN_IN), 2 / sqrt(fan_in), true},
        {SHOAL_NN_KAIMING_NORMAL(2, SHOAL_NN_FAN_OUT), 2 / sqrt(fan_out), true},
    };
    CHECK_OK(shoal_nn_fill_part(&somewhere, &unit_uniform, SHOAL_F64, &part, base[0]));
    CHECK_OK(shoal_nn_fill_part(&somewhere, &unit_normal, SHOAL_F64, &part, base[1]));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double bound = sqrt(3.0) * rows[i].std;
        CHECK_OK(shoal_nn_fill_part(&somewhere, &rows[i].distribution, SHOAL_F64, &part, x));
        for (size_t k = 0; k < COUNT; k++) {
            CHECK_DOUBLE(x[k],
                         rows[i].is_normal ? rows[i].std * base[1][k] : -bound + 2 * bound * base[0][k]);
        }
    }
}

TEST(gains_as_in_pytorch)
{
    const double gains[] = {1, 1, 5.0 / 3, sqrt(2), sqrt(2 / (1 + 0.01 * 0.01)), 0.75};
    double gain = 0;
    for (int i = 0; i < 6; i++) {
        CHECK_OK(shoal_nn_gain((shoal_nn_nonlinearity)i, 0.01, &gain));
        CHECK_DOUBLE(gain, gains[i]);
    }
    CHECK_STATUS(shoal_nn_gain((shoal_nn_nonlinearity)6, 0, &gain), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("6 is not a shoal_nn_nonlinearity");
    CHECK_STATUS(shoal_nn_gain((shoal_nn_nonlinearity)-1, 0, &gain), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_gain(SHOAL_NN_LEAKY_RELU, (double)NAN, &gain), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_gain(SHOAL_NN_RELU, 0, NULL), SHOAL_ERR_INVALID);
    CHECK_DOUBLE(gain, 0.75);
}

TEST(equal_ends_are_a_constant)
{
    const shoal_nn_distribution laws[] = {SHOAL_NN_UNIFORM(0.25, 0.25), SHOAL_NN_NORMAL(0.25, 0)};
    float x[9];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(fill_range(&somewhere, &laws[i], SHOAL_F32, 3, 9, x));
        for (int k = 0; k < 9; k++) {
            CHECK_DOUBLE((double)x[k], 0.25);
        }
    }
}

/* Errors ------------------------------------------------------------------------------------------------ */

static void refuse(const shoal_nn_distribution *distribution, const char *words)
{
    const shoal_nn_part part = {INTS(4, 2), 2, 0, 0, 4};
    float x[8] = {7, 7, 7, 7, 7, 7, 7, 7};
    CHECK_STATUS(shoal_nn_fill_part(&somewhere, distribution, SHOAL_F32, &part, x), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(words);
    CHECK_DOUBLE((double)x[0], 7);
}

TEST(distributions_that_are_none)
{
    const double nan = (double)NAN;
    const double infinity = (double)INFINITY;
    const struct {
        shoal_nn_distribution distribution;
        const char *words;
    } rows[] = {
        {SHOAL_NN_UNIFORM(1, 0), "low 1 to high 0"},
        {SHOAL_NN_UNIFORM(nan, 0), "low: nan"},
        {SHOAL_NN_UNIFORM(0, infinity), "high: inf"},
        {SHOAL_NN_UNIFORM(-1.5e308, 1.5e308), "difference"},
        {SHOAL_NN_NORMAL(infinity, 1), "mean: inf"},
        {SHOAL_NN_NORMAL(0, -1), "std: -1"},
        {SHOAL_NN_NORMAL(0, nan), "std: nan"},
        {SHOAL_NN_XAVIER_UNIFORM(-1), "gain: -1"},
        {SHOAL_NN_KAIMING_NORMAL(nan, SHOAL_NN_FAN_IN), "gain: nan"},
        {SHOAL_NN_KAIMING_NORMAL(1, (shoal_nn_fan)2), "fan: 2"},
        {SHOAL_NN_DISTRIBUTION_INIT, "kind is 0"},
        {{.struct_size = 3, .kind = SHOAL_NN_KIND_NORMAL}, "struct_size 3 is not"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        refuse(&rows[i].distribution, rows[i].words);
    }
    refuse(NULL, "distribution is NULL");
}

static void refuse_part(const shoal_nn_part *part, const char *words)
{
    float x[8];
    CHECK_STATUS(shoal_nn_fill_part(&somewhere, &unit_normal, SHOAL_F32, part, x), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(words);
}

TEST(parts_that_are_none)
{
    refuse_part(NULL, "part is NULL");
    refuse_part(&(shoal_nn_part){NULL, 2, 0, 0, 1}, "no shape");
    refuse_part(&(shoal_nn_part){INTS(4, 2), 0, 0, 0, 1}, "0 dimensions");
    refuse_part(&(shoal_nn_part){INTS(4, 2), 9, 0, 0, 1}, "9 dimensions");
    refuse_part(&(shoal_nn_part){INTS(4, -2), 2, 0, 0, 1}, "shape[1] is -2");
    refuse_part(&(shoal_nn_part){INTS(INT64_MAX, INT64_MAX), 2, 0, 0, 1}, "2^62");
    refuse_part(&(shoal_nn_part){INTS(4, 2), 2, 2, 0, 1}, "dim 2");
    refuse_part(&(shoal_nn_part){INTS(4, 2), 2, -1, 0, 1}, "dim -1");
    refuse_part(&(shoal_nn_part){INTS(4, 2), 2, 0, -1, 1}, "from -1 on");
    refuse_part(&(shoal_nn_part){INTS(4, 2), 2, 0, 0, -1}, "-1 indices");
    refuse_part(&(shoal_nn_part){INTS(4, 2), 2, 0, 2, 3}, "3 indices from 2 on are not among 4");
    refuse_part(&(shoal_nn_part){INTS(4, 2), 2, 0, 5, 0}, "0 indices from 5 on");
}

NN_TEST(other_arguments_that_are_wrong)
{
    const shoal_nn_distribution kaiming = SHOAL_NN_KAIMING_NORMAL(1, SHOAL_NN_FAN_IN);
    const uint64_t limit = UINT64_C(1) << 62;
    float x[8];
    uint32_t word;
    CHECK_STATUS(shoal_nn_words(NULL, 0, 1, &word), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_words(&somewhere, 0, 1, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_words(&somewhere, UINT64_MAX, 2, &word), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_nn_words(&somewhere, 0, 0, NULL));
    CHECK_STATUS(fill_range(NULL, &unit_normal, SHOAL_F32, 0, 1, x), SHOAL_ERR_INVALID);
    CHECK_STATUS(fill_range(&somewhere, &unit_normal, SHOAL_F32, 0, 1, NULL), SHOAL_ERR_INVALID);
    CHECK_OK(fill_range(&somewhere, &unit_normal, SHOAL_F32, 0, 0, NULL));
    CHECK_STATUS(fill_range(&somewhere, &unit_normal, SHOAL_F32, limit, 1, x), SHOAL_ERR_INVALID);
    CHECK_OK(fill_range(&somewhere, &unit_normal, SHOAL_F64, limit - 2, 2, x));
    CHECK_STATUS(fill_range(&somewhere, &kaiming, SHOAL_F32, 0, 1, x), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("1 dimensions: a fan needs two or more");
    CHECK_STATUS(fill_range(&somewhere, &unit_normal, SHOAL_I32, 0, 1, x), SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(fill_range(&somewhere, &unit_normal, (shoal_dtype)99, 0, 1, x), SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(shoal_nn_fill(&somewhere, &unit_normal, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_fill(&somewhere, &unit_normal, shoal_empty(INTS(2), 1, SHOAL_I64)),
                 SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(shoal_nn_fill(&somewhere, &kaiming, shoal_empty(INTS(2), 1, SHOAL_F32)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("1 dimensions: a fan needs two or more");
    shoal_tensor *meta = shoal_empty_on(INTS(2), 1, SHOAL_F32, SHOAL_META);
    CHECK_STATUS(shoal_nn_fill(&somewhere, &unit_normal, meta), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("meta device");
}

/* What failed is the call that should have made the tensor. */
TEST(a_missing_tensor_has_the_reason_of_its_call)
{
    CHECK_STATUS(shoal_nn_fill(&somewhere, &unit_normal, shoal_empty(INTS(4), 1, SHOAL_F32)),
                 SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "nn_fill: no scope is open on this thread (shoal_scope_begin)");
    CHECK_STATUS(shoal_nn_fill(&somewhere, &unit_normal, NULL), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "nn_fill: tensor is NULL");

    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_empty(INTS(-4), 1, SHOAL_F32);
    CHECK_STATUS(shoal_nn_fill(&somewhere, &unit_normal, tensor), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("empty: ");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);

    CHECK_STATUS(shoal_backward(shoal_empty(NULL, 0, SHOAL_F32), NULL), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "backward: no scope is open on this thread (shoal_scope_begin)");
}
