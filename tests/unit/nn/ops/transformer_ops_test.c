/* SPDX-License-Identifier: MIT */
/* Batched products, RMS norm, rotary embeddings and choices against plain loops in f64: in every dtype, with any strides. */
#include <stdio.h>

#include "nn/ops/ops.h"
#include "unit/nn/fixture.h"

/* bmm -------------------------------------------------------------------------------------------------- */

enum {
    BATCH = 3,
    M = 4,
    K = 5,
    N = 6
};

/* How a tensor [BATCH, rows, cols] lies. */
static shoal_tensor *lay(shoal_tensor *tensor, int how)
{
    const int64_t *shape = shoal_tensor_shape(tensor);
    shoal_tensor *wide;
    switch (how) {
    case 1: /* columns one after the other: a BLAS takes it transposed */
        return shoal_transpose(shoal_clone(shoal_transpose(tensor, 1, 2)), 1, 2);
    case 2: /* every second element: it is copied */
        wide = shoal_zeros(INTS(shape[0], shape[1], 2 * shape[2]), 3, shoal_tensor_dtype(tensor));
        return shoal_copy_(shoal_slice(wide, 2, 0, INT64_MAX, 2), tensor);
    case 3: /* the batch in the middle, as heads lie */
        return shoal_transpose(shoal_clone(shoal_transpose(tensor, 0, 1)), 0, 1);
    default:
        return tensor;
    }
}

NN_TEST(bmm_multiplies_every_pair)
{
    struct test_random random = test_random_begin(1);
    for (int d = 0; d < 4; d++) {
        for (int how = 0; how < 16; how++) {
            shoal_tensor *a = lay(make_random(&random, INTS(BATCH, M, K), 3, nn_dtypes[d]), how % 4);
            shoal_tensor *b = lay(make_random(&random, INTS(BATCH, K, N), 3, nn_dtypes[d]), how / 4);
            const double *left = doubles_of(a);
            const double *right = doubles_of(b);
            double expected[BATCH * M * N];
            for (int i = 0; i < BATCH * M * N; i++) {
                const double *row = left + i / N * K;
                const double *col = right + i / (M * N) * K * N + i % N;
                expected[i] = 0;
                for (int k = 0; k < K; k++) {
                    expected[i] += row[k] * col[k * N];
                }
            }
            shoal_tensor *c = shoal_nn_bmm(a, b);
            CHECK_INT(shoal_tensor_dtype(c), nn_dtypes[d]);
            check_close(c, expected, 2 * tolerance_of(nn_dtypes[d]), "bmm");
        }
    }
}

/* Many matrices are computed on one thread each, with copies (bf16) or without. */
NN_TEST(bmm_has_the_same_bits_with_any_number_of_threads)
{
    const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16};
    for (int d = 0; d < 2; d++) {
        struct test_random random = test_random_begin(6);
        shoal_tensor *a = make_random(&random, INTS(40, 33, 65), 3, dtypes[d]);
        shoal_tensor *b = shoal_transpose(make_random(&random, INTS(40, 31, 65), 3, dtypes[d]), 1, 2);
        REQUIRE_OK(shoal_nn_set_threads(1));
        shoal_tensor *one = shoal_nn_bmm(a, b);
        REQUIRE_OK(shoal_nn_set_threads(4));
        shoal_tensor *four = shoal_nn_bmm(a, b);
        CHECK_OK(shoal_nn_set_threads(0));
        REQUIRE(one && four);
        CHECK_BYTES(shoal_data(four), shoal_data(one),
                    (size_t)shoal_tensor_count(one) * shoal_dtype_bytes(dtypes[d]));
    }
}

NN_TEST(bmm_refuses_what_does_not_fit)
{
    shoal_tensor *a = shoal_zeros(INTS(2, 3, 4), 3, SHOAL_F32);
    CHECK_SCOPE_ERROR(shoal_nn_bmm(a, a), SHOAL_ERR_INVALID,
                      "nn.bmm: a has shape [2, 3, 4], b [2, 3, 4]: 4 columns do not fit 3 rows");
    CHECK_SCOPE_ERROR(shoal_nn_bmm(a, shoal_zeros(INTS(1, 4, 2), 3, SHOAL_F32)), SHOAL_ERR_INVALID,
                      "nn.bmm: a has shape [2, 3, 4], b [1, 4, 2]: both need");
    CHECK_SCOPE_ERROR(shoal_nn_bmm(shoal_zeros(INTS(4), 1, SHOAL_F32), shoal_zeros(INTS(4), 1, SHOAL_F32)),
                      SHOAL_ERR_INVALID, "nn.bmm: a has shape [4], b [4]: both need two dimensions");
    CHECK_SCOPE_ERROR(shoal_nn_bmm(a, shoal_zeros(INTS(2, 4, 1), 3, SHOAL_BF16)), SHOAL_ERR_INVALID,
                      "nn.bmm: b is bf16, but a is f32");
    CHECK_SCOPE_ERROR(shoal_nn_bmm(a, NULL), SHOAL_ERR_INVALID, "nn.bmm: b is NULL");
}

/* projection -------------------------------------------------------------------------------------------- */

/* The numbers of linear with the transposed weight, forward and backward. */
NN_TEST(projection_is_linear_with_a_transposed_weight)
{
    struct test_random random = test_random_begin(2);
    for (int d = 0; d < 4; d++) {
        shoal_tensor *x = require_grad(make_random(&random, INTS(2, 3, 4), 3, nn_dtypes[d]));
        shoal_tensor *weight = require_grad(make_random(&random, INTS(4, 5), 2, nn_dtypes[d]));
        shoal_tensor *bias = require_grad(make_random(&random, INTS(5), 1, nn_dtypes[d]));
        shoal_tensor *turned = shoal_transpose(weight, 0, 1);
        shoal_tensor *incoming = make_random(&random, INTS(2, 3, 5), 3, nn_dtypes[d]);
        shoal_tensor *y = shoal_nn_projection(x, weight, bias);
        shoal_tensor *expected = shoal_nn_linear(x, turned, bias);
        check_close(y, doubles_of(expected), tolerance_of(nn_dtypes[d]), "projection");
        shoal_tensor *leaves[] = {x, weight, bias};
        const double *gradients[3];
        CHECK_OK(shoal_backward(expected, incoming));
        for (int i = 0; i < 3; i++) {
            gradients[i] = doubles_of(shoal_clone(shoal_grad(leaves[i])));
            CHECK_OK(shoal_set_grad(leaves[i], NULL));
        }
        CHECK_OK(shoal_backward(y, incoming));
        for (int i = 0; i < 3; i++) {
            check_close(shoal_grad(leaves[i]), gradients[i], tolerance_of(nn_dtypes[d]), "its gradient");
        }
    }
    shoal_tensor *x = shoal_zeros(INTS(2, 3), 2, SHOAL_F32);
    CHECK_SCOPE_ERROR(shoal_nn_projection(x, shoal_zeros(INTS(4, 3), 2, SHOAL_F32), NULL), SHOAL_ERR_INVALID,
                      "nn.projection: input has shape [2, 3], weight [4, 3]: dimension 0 of size 4");
    CHECK_SCOPE_ERROR(
        shoal_nn_projection(x, shoal_zeros(INTS(3, 4), 2, SHOAL_F32), shoal_zeros(INTS(3), 1, SHOAL_F32)),
        SHOAL_ERR_INVALID, "nn.projection: bias has shape [3], not [4], the last dimension of weight");
}

/* rms_norm ---------------------------------------------------------------------------------------------- */

NN_TEST(rms_norm_divides_by_the_root_mean_square)
{
    struct test_random random = test_random_begin(3);
    enum {
        ROWS = 700, /* some parts of the sums of the weight's gradient */
        SIZE = 37
    };
    for (int d = 0; d < 4; d++) {
        shoal_tensor *x = make_random(&random, INTS(SIZE, ROWS), 2, nn_dtypes[d]);
        x = d % 2 ? shoal_transpose(x, 0, 1) : shoal_clone(shoal_transpose(x, 0, 1));
        shoal_tensor *weight = require_grad(make_random(&random, INTS(SIZE), 1, nn_dtypes[d]));
        shoal_tensor *incoming = make_random(&random, INTS(ROWS, SIZE), 2, nn_dtypes[d]);
        const double *values = doubles_of(x);
        const double *factors = doubles_of(weight);
        const double *gradients = doubles_of(incoming);
        double sums[SIZE] = {0};
        double *expected = shoal_mutable_data(shoal_zeros(INTS(ROWS, SIZE), 2, SHOAL_F64));
        for (int i = 0; i < ROWS; i++) {
            double sum = 0;
            for (int k = 0; k < SIZE; k++) {
                sum += values[i * SIZE + k] * values[i * SIZE + k];
            }
            for (int k = 0; k < SIZE; k++) {
                double normal = values[i * SIZE + k] / sqrt(sum / SIZE + 1e-3);
                expected[i * SIZE + k] = normal * factors[k];
                sums[k] += normal * gradients[i * SIZE + k];
            }
        }
        shoal_tensor *y = shoal_nn_rms_norm(x, weight, 1e-3);
        check_close(y, expected, tolerance_of(nn_dtypes[d]), "rms_norm");
        CHECK_OK(shoal_backward(y, incoming));
        /* Sums of so many terms, some of which cancel. */
        check_close(shoal_grad(weight), sums, ROWS * tolerance_of(SHOAL_F64) + 4 * tolerance_of(nn_dtypes[d]),
                    "its weight's gradient");
    }
}

NN_TEST(rms_norm_refuses_what_does_not_fit)
{
    shoal_tensor *x = shoal_zeros(INTS(2, 3), 2, SHOAL_F32);
    CHECK_SCOPE_ERROR(shoal_nn_rms_norm(x, shoal_zeros(INTS(2), 1, SHOAL_F32), 1e-5), SHOAL_ERR_INVALID,
                      "nn.rms_norm: weight has shape [2], not [3], the last dimension of input");
    CHECK_SCOPE_ERROR(shoal_nn_rms_norm(x, shoal_zeros(INTS(3), 1, SHOAL_F64), 1e-5), SHOAL_ERR_INVALID,
                      "nn.rms_norm: weight is f64, but input is f32");
    CHECK_SCOPE_ERROR(shoal_nn_rms_norm(x, NULL, -1), SHOAL_ERR_INVALID, "nn.rms_norm: eps: -1 is not");
    CHECK_SCOPE_ERROR(shoal_nn_rms_norm(shoal_zeros(NULL, 0, SHOAL_F32), NULL, 1), SHOAL_ERR_INVALID,
                      "nn.rms_norm: input has no dimensions");
    CHECK_DOUBLE(doubles_of(shoal_nn_rms_norm(shoal_zeros(INTS(1, 3), 2, SHOAL_F32), NULL, 1e-5))[2], 0);
}

/* rotary ------------------------------------------------------------------------------------------------ */

NN_TEST(rotary_turns_pairs_of_halves)
{
    enum {
        T = 5,
        HEADS = 2,
        SIZE = 6,
        FIRST = 100
    };
    struct test_random random = test_random_begin(4);
    for (int d = 0; d < 4; d++) {
        for (int is_strided = 0; is_strided < 2; is_strided++) {
            shoal_tensor *x = make_random(&random, INTS(HEADS, BATCH, T, SIZE), 4, nn_dtypes[d]);
            x = shoal_permute(x, INTS(1, 2, 0, 3), 4);
            x = require_grad(is_strided ? x : shoal_clone(x));
            const double *values = doubles_of(x);
            double expected[BATCH * T * HEADS * SIZE];
            for (int i = 0; i < BATCH * T * HEADS; i++) {
                int position = FIRST + i / HEADS % T;
                for (int k = 0; k < SIZE / 2; k++) {
                    double angle = position * pow(10000, -2.0 * k / SIZE);
                    double low = values[i * SIZE + k];
                    double high = values[i * SIZE + SIZE / 2 + k];
                    expected[i * SIZE + k] = low * cos(angle) - high * sin(angle);
                    expected[i * SIZE + SIZE / 2 + k] = high * cos(angle) + low * sin(angle);
                }
            }
            shoal_tensor *y = shoal_nn_rotary(x, FIRST, 10000);
            check_close(y, expected, tolerance_of(nn_dtypes[d]), "rotary");
            /* The gradient turns back. */
            CHECK_OK(shoal_backward(y, shoal_detach(y)));
            check_close(shoal_grad(x), values, 2 * tolerance_of(nn_dtypes[d]), "its gradient");
        }
    }
    /* At position 0 nothing is turned. */
    shoal_tensor *x = make_random(&random, INTS(1, 3, 4), 3, SHOAL_F32);
    CHECK_BYTES(shoal_data(shoal_nn_rotary(x, 0, 10000)), shoal_data(x), 48);
}

NN_TEST(rotary_refuses_what_does_not_fit)
{
    shoal_tensor *x = shoal_zeros(INTS(2, 3, 4), 3, SHOAL_F32);
    CHECK_SCOPE_ERROR(shoal_nn_rotary(shoal_zeros(INTS(3, 4), 2, SHOAL_F32), 0, 10000), SHOAL_ERR_INVALID,
                      "nn.rotary: self has shape [3, 4], not [..., positions, heads, size]");
    CHECK_SCOPE_ERROR(shoal_nn_rotary(shoal_zeros(INTS(2, 4, 3), 3, SHOAL_F32), 0, 10000), SHOAL_ERR_INVALID,
                      "nn.rotary: self has shape [2, 4, 3]: a size of 3 cannot be halved");
    CHECK_SCOPE_ERROR(shoal_nn_rotary(x, 0, 0), SHOAL_ERR_INVALID, "nn.rotary: base: 0 is not a positive");
    CHECK_SCOPE_ERROR(shoal_nn_rotary(x, 0, (double)NAN), SHOAL_ERR_INVALID, "nn.rotary: base: ");
}

/* Choices ----------------------------------------------------------------------------------------------- */

/* Elements are copied as they are, in any dtype. */
NN_TEST(where_takes_elements_of_any_dtype)
{
    const shoal_dtype kinds[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16, SHOAL_I64,
                                 SHOAL_U8,  SHOAL_I16, SHOAL_I32, SHOAL_BOOL};
    for (size_t d = 0; d < sizeof(kinds) / sizeof(kinds[0]); d++) {
        shoal_tensor *a = make_indices(INTS(1, 0, 1, 0, 1, 1), INTS(2, 3), 2, kinds[d]);
        shoal_tensor *b = make_indices(INTS(0, 0, 1, 1, 0, 0), INTS(3, 2), 2, kinds[d]);
        shoal_tensor *mask = make_indices(INTS(1, 0, 0, 1, 1, 0), INTS(3, 2), 2, SHOAL_BOOL);
        shoal_tensor *y = shoal_nn_where(shoal_transpose(mask, 0, 1), a, shoal_transpose(b, 0, 1));
        const double expected[] = {1, 1, 1, 0, 1, 0};
        CHECK_INT(shoal_tensor_dtype(y), kinds[d]);
        CHECK_BYTES(doubles_of(y), expected, sizeof(expected));
    }
}

/* [4, 1] and [3] and [2, 1, 1] give [2, 4, 3]. */
NN_TEST(where_broadcasts)
{
    shoal_tensor *mask = make_indices(INTS(1, 0, 0, 1), INTS(4, 1), 2, SHOAL_BOOL);
    shoal_tensor *a = require_grad(make_tensor((double[]){1, 2, 3}, INTS(3), 1, SHOAL_BF16));
    shoal_tensor *b = require_grad(make_tensor((double[]){10, 20}, INTS(2, 1, 1), 3, SHOAL_BF16));
    shoal_tensor *y = shoal_nn_where(mask, a, b);
    CHECK_INT(shoal_tensor_n_dims(y), 3);
    const double *values = doubles_of(y);
    for (int i = 0; i < 24; i++) {
        int row = i / 3 % 4;
        CHECK_DOUBLE(values[i], row == 0 || row == 3 ? i % 3 + 1 : i < 12 ? 10 : 20);
    }
    CHECK_OK(shoal_backward(y, shoal_full(INTS(2, 4, 3), 3, 1, SHOAL_BF16)));
    CHECK_BYTES(doubles_of(shoal_grad(a)), ((const double[]){4, 4, 4}), 24);
    CHECK_BYTES(doubles_of(shoal_grad(b)), ((const double[]){6, 6}), 16);
    CHECK_INT(shoal_tensor_n_dims(shoal_grad(b)), 3);
}

/* What is not chosen has no influence: neither a NaN of it, nor a NaN of the gradient. */
NN_TEST(what_is_masked_is_gone)
{
    const double nan = (double)NAN;
    const double infinity = (double)INFINITY;
    for (int d = 0; d < 4; d++) {
        shoal_tensor *mask = make_indices(INTS(0, 1, 1, 0), INTS(4), 1, SHOAL_BOOL);
        shoal_tensor *x =
            require_grad(make_tensor((double[]){1, nan, infinity, 2}, INTS(1, 4), 2, nn_dtypes[d]));
        shoal_tensor *y = shoal_nn_masked_fill(x, mask, -infinity);
        const double *values = doubles_of(y);
        CHECK(values[0] == 1 && values[1] == -infinity && values[2] == -infinity && values[3] == 2);
        CHECK_OK(shoal_backward(y, make_tensor((double[]){3, nan, 4, 5}, INTS(1, 4), 2, nn_dtypes[d])));
        CHECK_BYTES(doubles_of(shoal_grad(x)), ((const double[]){3, 0, 0, 5}), 32);
        /* A causal softmax: what is masked has no probability. */
        CHECK_DOUBLE(doubles_of(shoal_nn_softmax(y, 1))[2], 0);
    }
    shoal_tensor *x = shoal_zeros(INTS(2), 1, SHOAL_F16);
    shoal_tensor *all = make_indices(INTS(1), INTS(1), 1, SHOAL_BOOL);
    CHECK(isinf(doubles_of(shoal_nn_masked_fill(x, all, 1e9))[1]));
}

/* A value just beside the middle of two 16-bit numbers is rounded from f64 at once: through f32 it would be a tie. */
NN_TEST(masked_fill_rounds_its_value_once)
{
    const shoal_dtype dtypes[] = {SHOAL_BF16, SHOAL_F16};
    const double steps[] = {0x1p-7, 0x1p-10};
    shoal_tensor *all = make_indices(INTS(1), INTS(1), 1, SHOAL_BOOL);
    for (int d = 0; d < 2; d++) {
        shoal_tensor *x = shoal_zeros(INTS(1), 1, dtypes[d]);
        const double tie = 1 + steps[d] / 2;
        const double values[][2] = {{tie, 1},
                                    {tie + 0x1p-40, 1 + steps[d]},
                                    {-tie - 0x1p-40, -1 - steps[d]},
                                    {tie + steps[d] - 0x1p-40, 1 + steps[d]},
                                    {0x1p-200, 0},
                                    {1e300, (double)INFINITY}};
        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
            CHECK_DOUBLE(doubles_of(shoal_nn_masked_fill(x, all, values[i][0]))[0], values[i][1]);
        }
        CHECK(isnan(doubles_of(shoal_nn_masked_fill(x, all, (double)NAN))[0]));
    }
}

NN_TEST(choices_refuse_what_does_not_fit)
{
    shoal_tensor *x = shoal_zeros(INTS(2, 3), 2, SHOAL_F32);
    shoal_tensor *mask = shoal_zeros(INTS(2), 1, SHOAL_BOOL);
    CHECK_SCOPE_ERROR(shoal_nn_where(mask, x, x), SHOAL_ERR_INVALID,
                      "nn.where: condition has shape [2], a [2, 3], b [2, 3], which do not broadcast");
    CHECK_SCOPE_ERROR(shoal_nn_where(x, x, x), SHOAL_ERR_UNSUPPORTED, "nn.where: condition: f32 is not bool");
    CHECK_SCOPE_ERROR(shoal_nn_where(mask, x, shoal_zeros(INTS(3), 1, SHOAL_F64)), SHOAL_ERR_INVALID,
                      "nn.where: b is f64, but a is f32");
    CHECK_SCOPE_ERROR(shoal_nn_masked_fill(x, mask, 0), SHOAL_ERR_INVALID,
                      "nn.masked_fill: mask has shape [2], which does not broadcast to that of self, [2, 3]");
    CHECK_SCOPE_ERROR(shoal_nn_masked_fill(x, shoal_zeros(INTS(1, 2, 3), 3, SHOAL_BOOL), 0),
                      SHOAL_ERR_INVALID, "nn.masked_fill: mask has shape [1, 2, 3]");
    CHECK_SCOPE_ERROR(shoal_nn_masked_fill(mask, mask, 0), SHOAL_ERR_UNSUPPORTED,
                      "nn.masked_fill: self: bool is not one of");
}

/* Threads ----------------------------------------------------------------------------------------------- */

enum {
    MANY_ROWS = 600,
    MANY_COLUMNS = 256,
    N_RESULTS = 9
};

/* Enough work to be cut into parts. */
static void compute_all(shoal_tensor *x, shoal_tensor *weight, shoal_tensor *targets, shoal_tensor *mask,
                        shoal_tensor *results[N_RESULTS])
{
    shoal_tensor *norm = shoal_nn_rms_norm(x, weight, 1e-5);
    shoal_tensor *loss = shoal_nn_cross_entropy(norm, targets);
    shoal_tensor *turned = shoal_nn_rotary(shoal_view(x, INTS(MANY_ROWS, 4, MANY_COLUMNS / 4), 3), 7, 10000);
    CHECK_OK(shoal_backward(loss, NULL));
    results[0] = norm;
    results[1] = loss;
    results[2] = turned;
    results[3] = shoal_clone(shoal_grad(x));
    results[4] = shoal_clone(shoal_grad(weight));
    results[5] = shoal_nn_softmax(x, 1);
    results[6] = shoal_nn_log_softmax(x, 0);
    results[7] = shoal_nn_masked_fill(x, mask, 3);
    results[8] = shoal_nn_argmax(x, 1, false);
    CHECK_OK(shoal_set_grad(x, NULL));
    CHECK_OK(shoal_set_grad(weight, NULL));
}

NN_TEST(threads_change_no_bits)
{
    struct test_random random = test_random_begin(5);
    int64_t targets[MANY_ROWS];
    for (int i = 0; i < MANY_ROWS; i++) {
        targets[i] = i % 11 == 0 ? -100 : i % MANY_COLUMNS;
    }
    for (int d = 1; d < 4; d += 2) {
        shoal_tensor *x = require_grad(make_random(&random, INTS(MANY_ROWS, MANY_COLUMNS), 2, nn_dtypes[d]));
        shoal_tensor *weight = require_grad(make_random(&random, INTS(MANY_COLUMNS), 1, nn_dtypes[d]));
        shoal_tensor *classes = make_indices(targets, INTS(MANY_ROWS), 1, SHOAL_I64);
        shoal_tensor *mask =
            shoal_reshape(make_indices(targets, INTS(MANY_ROWS), 1, SHOAL_BOOL), INTS(MANY_ROWS, 1), 2);
        shoal_tensor *expected[N_RESULTS];
        CHECK_OK(shoal_nn_set_threads(1));
        compute_all(x, weight, classes, mask, expected);
        for (int n_threads = 2; n_threads <= 4; n_threads += 2) {
            shoal_tensor *results[N_RESULTS];
            CHECK_OK(shoal_nn_set_threads(n_threads));
            compute_all(x, weight, classes, mask, results);
            for (int i = 0; i < N_RESULTS; i++) {
                size_t bytes = (size_t)shoal_tensor_count(results[i]) *
                               shoal_dtype_bytes(shoal_tensor_dtype(results[i]));
                CHECK_BYTES(shoal_data(results[i]), shoal_data(expected[i]), bytes);
            }
        }
        CHECK_OK(shoal_nn_set_threads(0));
    }
}
