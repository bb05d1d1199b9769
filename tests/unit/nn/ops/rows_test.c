/* SPDX-License-Identifier: MIT */
/* Ops along a dimension against plain loops in f64: values in every dtype, with any strides, of odd numbers and of nothing. */
#include <stdio.h>

#include "nn/ops/ops.h"
#include "unit/nn/fixture.h"

/* softmax ---------------------------------------------------------------------------------------------- */

enum {
    DEEP = 3,
    LONG = 21,
    WIDE = 5
};

/* Along dimension 1 of [DEEP, LONG, WIDE]. */
static void plain_softmax(const double *x, bool is_log, double *y)
{
    for (int i = 0; i < DEEP * WIDE; i++) {
        const int first = i / WIDE * LONG * WIDE + i % WIDE;
        double sum = 0;
        for (int k = 0; k < LONG; k++) {
            sum += exp(x[first + k * WIDE]);
        }
        for (int k = 0; k < LONG; k++) {
            double value = exp(x[first + k * WIDE]) / sum;
            y[first + k * WIDE] = is_log ? log(value) : value;
        }
    }
}

/* The same numbers with dimension 1 first, in the middle and last. */
NN_TEST(softmax_along_any_dimension)
{
    struct test_random random = test_random_begin(3);
    for (int d = 0; d < 4; d++) {
        shoal_tensor *x = shoal_mul_scalar(make_random(&random, INTS(DEEP, LONG, WIDE), 3, nn_dtypes[d]), 3);
        for (int is_log = 0; is_log < 2; is_log++) {
            double expected[DEEP * LONG * WIDE];
            plain_softmax(doubles_of(x), is_log, expected);
            for (int dim = 0; dim < 3; dim++) {
                shoal_tensor *turned = shoal_transpose(x, 1, dim);
                for (int is_strided = 0; is_strided < 2; is_strided++) {
                    shoal_tensor *from = is_strided ? turned : shoal_clone(turned);
                    shoal_tensor *y =
                        is_log ? shoal_nn_log_softmax(from, dim) : shoal_nn_softmax(from, dim - 3);
                    CHECK_INT(shoal_tensor_dtype(y), nn_dtypes[d]);
                    check_close(shoal_transpose(y, 1, dim), expected, 4 * tolerance_of(nn_dtypes[d]),
                                is_log ? "log_softmax" : "softmax");
                }
            }
        }
    }
}

/* As PyTorch: no overflow of large numbers; a row with a NaN or +infinity, or of -infinities, is NaN. */
NN_TEST(softmax_of_odd_numbers)
{
    const double infinity = (double)INFINITY;
    const double nan = (double)NAN;
    const double rows[] = {1000, 999, -infinity, 0, nan, 1, infinity, 1, 0, -infinity, -infinity, -infinity};
    shoal_tensor *x = make_tensor(rows, INTS(4, 3), 2, SHOAL_F32);
    const double *y = doubles_of(shoal_nn_softmax(x, 1));
    CHECK(fabs(y[0] - 1 / (1 + exp(-1.0))) < 1e-6 && y[2] == 0);
    const double *logs = doubles_of(shoal_nn_log_softmax(x, 1));
    CHECK(fabs(logs[1] + 1 + log(1 + exp(-1.0))) < 1e-6 && isinf(logs[2]) && logs[2] < 0);
    for (int i = 3; i < 12; i++) {
        bool is_nan = isnan(y[i]);
        /* With +infinity PyTorch's exp(-infinity) are 0, and so are ours. */
        CHECK(is_nan || (i >= 6 && i < 9 && y[i] == 0));
        CHECK(isnan(logs[i]) || (i >= 6 && i < 9));
    }
    CHECK(isnan(y[6]));
}

NN_TEST(softmax_of_nothing)
{
    CHECK_INT(shoal_tensor_count(shoal_nn_softmax(shoal_zeros(INTS(0, 3), 2, SHOAL_BF16), 1)), 0);
    CHECK_INT(shoal_tensor_count(shoal_nn_softmax(shoal_zeros(INTS(0, 3), 2, SHOAL_F32), 0)), 0);
    CHECK_INT(shoal_tensor_count(shoal_nn_log_softmax(shoal_zeros(INTS(3, 0), 2, SHOAL_F16), 1)), 0);
    CHECK_DOUBLE(*doubles_of(shoal_nn_softmax(shoal_full(NULL, 0, 3, SHOAL_F32), -1)), 1);
    CHECK_DOUBLE(*doubles_of(shoal_nn_log_softmax(shoal_full(INTS(1, 1), 2, 3, SHOAL_BF16), 0)), 0);
}

NN_TEST(softmax_refuses_what_does_not_fit)
{
    shoal_tensor *x = shoal_zeros(INTS(2, 3), 2, SHOAL_F32);
    CHECK_SCOPE_ERROR(shoal_nn_softmax(x, 2), SHOAL_ERR_INVALID,
                      "nn.softmax: dim: 2 is not within -2..1: self has shape [2, 3]");
    CHECK_SCOPE_ERROR(shoal_nn_log_softmax(x, -3), SHOAL_ERR_INVALID, "nn.log_softmax: dim: -3 is not");
    CHECK_SCOPE_ERROR(shoal_nn_softmax(shoal_zeros(INTS(2), 1, SHOAL_I64), 0), SHOAL_ERR_UNSUPPORTED,
                      "nn.softmax: self: i64 is not one of");
    CHECK_SCOPE_ERROR(shoal_nn_softmax(NULL, 0), SHOAL_ERR_INVALID, "nn.softmax: self is NULL");
}

/* cross_entropy ---------------------------------------------------------------------------------------- */

enum {
    N_ROWS = 6,
    N_CLASSES = 11
};

/* Loss and gradient by the definition: the target's weight is 1 - s, and every class has s / n. */
static double plain_cross_entropy(const double *x, const int64_t *targets, int64_t ignored, double s,
                                  double *gradient)
{
    double loss = 0;
    double n_counted = 0;
    for (int i = 0; i < N_ROWS; i++) {
        n_counted += targets[i] == ignored ? 0 : 1;
    }
    for (int i = 0; i < N_ROWS; i++) {
        double sum = 0;
        for (int k = 0; k < N_CLASSES; k++) {
            sum += exp(x[i * N_CLASSES + k]);
            gradient[i * N_CLASSES + k] = 0;
        }
        for (int k = 0; k < N_CLASSES && targets[i] != ignored; k++) {
            double p = exp(x[i * N_CLASSES + k]) / sum;
            double weight = (k == targets[i] ? 1 - s : 0) + s / N_CLASSES;
            loss -= weight * log(p);
            gradient[i * N_CLASSES + k] = (p - weight) / n_counted;
        }
    }
    return loss / n_counted;
}

NN_TEST(cross_entropy_by_its_definition)
{
    const double smoothings[] = {0, 0.1, 1};
    const int64_t ignored[] = {-100, 3, INT64_MIN};
    const int64_t targets[] = {0, 3, 10, 3, 5, 1};
    struct test_random random = test_random_begin(4);
    for (int d = 0; d < 4; d++) {
        for (int i = 0; i < 9; i++) {
            shoal_nn_cross_entropy_options options = SHOAL_NN_CROSS_ENTROPY_OPTIONS_INIT;
            CHECK_INT(options.ignore_index, -100);
            CHECK_DOUBLE(options.label_smoothing, 0);
            options.ignore_index = ignored[i % 3];
            options.label_smoothing = smoothings[i / 3];
            shoal_tensor *x = make_random(&random, INTS(N_CLASSES, N_ROWS), 2, nn_dtypes[d]);
            x = i % 2 ? shoal_transpose(x, 0, 1) : shoal_clone(shoal_transpose(x, 0, 1));
            double gradient[N_ROWS * N_CLASSES];
            double expected = plain_cross_entropy(doubles_of(x), targets, options.ignore_index,
                                                  options.label_smoothing, gradient);
            shoal_tensor *leaf = require_grad(x);
            shoal_tensor *loss = shoal_nn_cross_entropy_with(
                leaf, make_indices(targets, INTS(N_ROWS), 1, i % 2 ? SHOAL_I64 : SHOAL_U8), &options);
            check_close(loss, &expected, d == 0 ? 1e-14 : 1e-6, "cross_entropy");
            CHECK_OK(shoal_backward(loss, NULL));
            check_close(shoal_grad(leaf), gradient, tolerance_of(nn_dtypes[d]), "its gradient");
        }
    }
}

/* Rows that are ignored are as if they were not there, whatever is in them. */
NN_TEST(ignored_rows_do_not_count)
{
    const double nan = (double)NAN;
    shoal_tensor *x =
        require_grad(make_tensor((double[]){1, 2, nan, nan, 0.5, -1}, INTS(3, 2), 2, SHOAL_F32));
    shoal_tensor *loss = shoal_nn_cross_entropy(x, make_indices(INTS(1, -100, 0), INTS(3), 1, SHOAL_I64));
    shoal_tensor *others = make_tensor((double[]){1, 2, 0.5, -1}, INTS(2, 2), 2, SHOAL_F32);
    shoal_tensor *expected = shoal_nn_cross_entropy(others, make_indices(INTS(1, 0), INTS(2), 1, SHOAL_I64));
    CHECK_BYTES(shoal_data(loss), shoal_data(expected), 4);
    CHECK_OK(shoal_backward(loss, NULL));
    const float *gradient = shoal_data(shoal_grad(x));
    CHECK(gradient[2] == 0 && gradient[3] == 0 && gradient[0] != 0 && gradient[5] != 0);
    /* All of them: NaN, and no gradient. */
    CHECK_OK(shoal_set_grad(x, NULL));
    loss = shoal_nn_cross_entropy(x, shoal_full(INTS(3), 1, -100, SHOAL_I16));
    CHECK(isnan(*(const float *)shoal_data(loss)));
    CHECK_OK(shoal_backward(loss, NULL));
    gradient = shoal_data(shoal_grad(x));
    for (int i = 0; i < 6; i++) {
        CHECK(gradient[i] == 0);
    }
}

NN_TEST(cross_entropy_refuses_what_does_not_fit)
{
    shoal_tensor *x = shoal_zeros(INTS(2, 3), 2, SHOAL_F32);
    shoal_tensor *targets = make_indices(INTS(0, -100), INTS(2), 1, SHOAL_I64);
    shoal_nn_cross_entropy_options options = SHOAL_NN_CROSS_ENTROPY_OPTIONS_INIT;
    options.ignore_index = -1;
    CHECK_SCOPE_ERROR(shoal_nn_cross_entropy_with(x, targets, &options), SHOAL_ERR_INVALID,
                      "nn.cross_entropy: targets: element 1 is -100, not one of 3 classes");
    options.label_smoothing = 1.5;
    CHECK_SCOPE_ERROR(shoal_nn_cross_entropy_with(x, targets, &options), SHOAL_ERR_INVALID,
                      "nn.cross_entropy: label_smoothing: 1.5 is not within 0..1");
    options.label_smoothing = (double)NAN;
    CHECK_SCOPE_ERROR(shoal_nn_cross_entropy_with(x, targets, &options), SHOAL_ERR_INVALID,
                      "nn.cross_entropy: label_smoothing: ");
    options.struct_size = 3;
    CHECK_SCOPE_ERROR(shoal_nn_cross_entropy_with(x, targets, &options), SHOAL_ERR_INVALID,
                      "nn_cross_entropy_with: options: struct_size 3 is not");
    CHECK(shoal_nn_cross_entropy_with(x, targets, NULL) != NULL);
}

/* Many rows: they are cut into parts, and a part begins in the middle of strided dimensions. */
NN_TEST(cross_entropy_of_many_rows)
{
    enum {
        OUTER = 40,
        INNER = 50,
        CLASSES = 64
    };
    struct test_random random = test_random_begin(5);
    for (int d = 0; d < 4; d++) {
        shoal_tensor *x = make_random(&random, INTS(INNER, CLASSES, OUTER), 3, nn_dtypes[d]);
        x = shoal_permute(x, INTS(2, 0, 1), 3);
        x = require_grad(d % 2 ? x : shoal_clone(x));
        int64_t targets[OUTER * INNER];
        const double *values = doubles_of(x);
        double sum = 0;
        double n_counted = 0;
        for (int i = 0; i < OUTER * INNER; i++) {
            targets[i] = i % 7 == 3 ? -100 : i % CLASSES;
            double row = 0;
            for (int k = 0; k < CLASSES; k++) {
                row += exp(values[i * CLASSES + k]);
            }
            sum += targets[i] < 0 ? 0 : log(row) - values[i * CLASSES + targets[i]];
            n_counted += targets[i] < 0 ? 0 : 1;
        }
        const double expected = sum / n_counted;
        shoal_tensor *loss =
            shoal_nn_cross_entropy(x, make_indices(targets, INTS(OUTER, INNER), 2, SHOAL_I64));
        check_close(loss, &expected, d == 0 ? 1e-13 : 1e-6, "cross_entropy");
        /* Gradients of a row cancel, and those of an ignored one are 0. */
        CHECK_OK(shoal_backward(shoal_mul_scalar(loss, n_counted), NULL));
        const double *gradient = doubles_of(shoal_grad(x));
        for (int i = 0; i < OUTER * INNER; i++) {
            double total = 0;
            for (int k = 0; k < CLASSES; k++) {
                total += gradient[i * CLASSES + k];
            }
            CHECK(fabs(total) <= 4 * tolerance_of(nn_dtypes[d]));
            bool is_target_lower = targets[i] >= 0 && gradient[i * CLASSES + targets[i]] < 0;
            CHECK(targets[i] < 0 ? gradient[i * CLASSES] == 0 : is_target_lower);
        }
    }
}

/* max and argmax ----------------------------------------------------------------------------------------- */

NN_TEST(the_largest_along_any_dimension)
{
    struct test_random random = test_random_begin(6);
    for (int d = 0; d < 4; d++) {
        shoal_tensor *x = make_random(&random, INTS(DEEP, LONG, WIDE), 3, nn_dtypes[d]);
        const double *values = doubles_of(x);
        double largest[DEEP * WIDE];
        double places[DEEP * WIDE];
        for (int i = 0; i < DEEP * WIDE; i++) {
            const double *row = values + i / WIDE * LONG * WIDE + i % WIDE;
            places[i] = 0;
            for (int k = 1; k < LONG; k++) {
                places[i] = row[k * WIDE] > row[(int)places[i] * WIDE] ? k : places[i];
            }
            largest[i] = row[(int)places[i] * WIDE];
        }
        for (int is_strided = 0; is_strided < 2; is_strided++) {
            /* The dimension in the middle, and last. */
            shoal_tensor *middle = is_strided ? shoal_clone(shoal_transpose(x, 1, 2)) : x;
            middle = is_strided ? shoal_transpose(middle, 1, 2) : middle;
            shoal_tensor *last = shoal_transpose(x, 1, 2);
            last = is_strided ? last : shoal_clone(last);
            CHECK_BYTES(doubles_of(shoal_nn_max(middle, 1, false)), largest, sizeof(largest));
            CHECK_BYTES(doubles_of(shoal_nn_max(last, -1, true)), largest, sizeof(largest));
            CHECK_BYTES(doubles_of(shoal_nn_argmax(middle, -2, true)), places, sizeof(places));
            CHECK_BYTES(doubles_of(shoal_nn_argmax(last, 2, false)), places, sizeof(places));
        }
        CHECK_INT(shoal_tensor_n_dims(shoal_nn_max(x, 1, false)), 2);
        CHECK_INT(shoal_tensor_shape(shoal_nn_argmax(x, 1, true))[1], 1);
        CHECK_INT(shoal_tensor_dtype(shoal_nn_argmax(x, 1, true)), SHOAL_I64);
        CHECK_INT(shoal_tensor_dtype(shoal_nn_max(x, 1, true)), nn_dtypes[d]);
    }
}

/* The first of equal ones has all of the gradient; a NaN is larger than infinity. */
NN_TEST(the_first_of_the_largest)
{
    const double nan = (double)NAN;
    const double infinity = (double)INFINITY;
    const double numbers[] = {1, 3, 3, 2, infinity, nan, 7, nan, -infinity, -infinity, -infinity, -infinity};
    for (int d = 0; d < 4; d++) {
        shoal_tensor *x = require_grad(make_tensor(numbers, INTS(3, 4), 2, nn_dtypes[d]));
        const double *values = doubles_of(shoal_nn_max(x, 1, false));
        CHECK(values[0] == 3 && isnan(values[1]) && values[2] == -infinity);
        shoal_tensor *places = shoal_nn_argmax(x, 1, false);
        CHECK(!shoal_requires_grad(places));
        CHECK_BYTES(shoal_data(places), ((const int64_t[]){1, 1, 0}), 24);
        CHECK_OK(shoal_backward(shoal_nn_max(x, 1, true),
                                make_tensor((double[]){5, 6, 7}, INTS(3, 1), 2, nn_dtypes[d])));
        const double expected[] = {0, 5, 0, 0, 0, 6, 0, 0, 7, 0, 0, 0};
        CHECK_BYTES(doubles_of(shoal_grad(x)), expected, sizeof(expected));
    }
}

NN_TEST(max_refuses_what_does_not_fit)
{
    shoal_tensor *none = shoal_zeros(INTS(2, 0), 2, SHOAL_F32);
    CHECK_SCOPE_ERROR(shoal_nn_max(none, 1, false), SHOAL_ERR_INVALID,
                      "nn.max: self has shape [2, 0]: there is no largest element along dimension 1");
    CHECK_INT(shoal_tensor_count(shoal_nn_argmax(none, 0, false)), 0);
    CHECK_SCOPE_ERROR(shoal_nn_argmax(none, 2, false), SHOAL_ERR_INVALID,
                      "nn.argmax: dim: 2 is not within -2..1");
    CHECK_SCOPE_ERROR(shoal_nn_argmax(NULL, 0, false), SHOAL_ERR_INVALID, "nn.argmax: self is NULL");
    CHECK_SCOPE_ERROR(shoal_nn_max(shoal_zeros(INTS(2), 1, SHOAL_I32), 0, false), SHOAL_ERR_UNSUPPORTED,
                      "nn.max: self: i32 is not one of");
}

/* index_select ------------------------------------------------------------------------------------------- */

NN_TEST(slices_by_index)
{
    const shoal_dtype kinds[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16, SHOAL_I64, SHOAL_U8, SHOAL_I16};
    const int64_t picked[] = {2, 0, 2, 1};
    for (size_t d = 0; d < sizeof(kinds) / sizeof(kinds[0]); d++) {
        int64_t numbers[27];
        for (int i = 0; i < 27; i++) {
            numbers[i] = i;
        }
        shoal_tensor *x = make_indices(numbers, INTS(3, 3, 3), 3, kinds[d]);
        for (int dim = 0; dim < 3; dim++) {
            for (int is_strided = 0; is_strided < 2; is_strided++) {
                shoal_tensor *from =
                    is_strided ? shoal_transpose(shoal_clone(shoal_transpose(x, 0, 2)), 0, 2) : x;
                shoal_tensor *y =
                    shoal_nn_index_select(from, dim - 3, make_indices(picked, INTS(4), 1, SHOAL_U8));
                CHECK_INT(shoal_tensor_dtype(y), kinds[d]);
                const double *values = doubles_of(shoal_transpose(y, dim, 0));
                const double *whole = doubles_of(shoal_transpose(x, dim, 0));
                for (int i = 0; i < 36; i++) {
                    CHECK_DOUBLE(values[i], whole[picked[i / 9] * 9 + i % 9]);
                }
            }
        }
    }
}

/* In bf16 257 is no number: slices are added in f32 and rounded once. */
NN_TEST(slices_are_added_in_f32)
{
    for (int dim = 0; dim < 2; dim++) {
        shoal_tensor *x = require_grad(shoal_zeros(INTS(2, 2), 2, SHOAL_BF16));
        shoal_tensor *y =
            shoal_nn_index_select(x, dim, make_indices(INTS(1, 1, 1, 1), INTS(4), 1, SHOAL_I64));
        shoal_tensor *incoming =
            make_tensor((double[]){256, 1, 1, 1, 256, 1, 1, 1}, INTS(2, 4), 2, SHOAL_BF16);
        CHECK_OK(shoal_backward(y, dim == 1 ? incoming : shoal_transpose(incoming, 0, 1)));
        const double *gradient = doubles_of(shoal_grad(x));
        CHECK(gradient[0] == 0 && gradient[3] == 260 && gradient[dim == 1 ? 1 : 2] == 260);
    }
}

NN_TEST(index_select_refuses_what_does_not_fit)
{
    shoal_tensor *x = shoal_zeros(INTS(2, 3), 2, SHOAL_F32);
    shoal_tensor *indices = make_indices(INTS(0, 2), INTS(2), 1, SHOAL_I64);
    CHECK_SCOPE_ERROR(shoal_nn_index_select(x, 0, indices), SHOAL_ERR_INVALID,
                      "nn.index_select: indices: element 1 is 2, not one of 2 places");
    CHECK_SCOPE_ERROR(shoal_nn_index_select(x, 0, make_indices(INTS(-1), INTS(1), 1, SHOAL_I8)),
                      SHOAL_ERR_INVALID, "nn.index_select: indices: element 0 is -1");
    CHECK_SCOPE_ERROR(shoal_nn_index_select(x, 0, x), SHOAL_ERR_UNSUPPORTED,
                      "nn.index_select: indices: f32 is not one of");
    CHECK_SCOPE_ERROR(shoal_nn_index_select(x, 1, shoal_reshape(indices, INTS(2, 1), 2)), SHOAL_ERR_INVALID,
                      "nn.index_select: indices has shape [2, 1], not one dimension");
    CHECK_SCOPE_ERROR(shoal_nn_index_select(shoal_zeros(NULL, 0, SHOAL_F32), 0, indices), SHOAL_ERR_INVALID,
                      "nn.index_select: self has no dimensions");
    CHECK_SCOPE_ERROR(shoal_nn_index_select(x, -3, indices), SHOAL_ERR_INVALID,
                      "nn.index_select: dim: -3 is not within -2..1");
}

/* Rows that lie beside each other are read some at a time, which changes no bit: 37 of them, between two dimensions. */
NN_TEST(rows_beside_each_other_have_the_bits_of_rows_apart)
{
    const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16};
    for (int d = 0; d < 4; d++) {
        struct test_random random = test_random_begin(9);
        shoal_tensor *x = require_grad(make_random(&random, INTS(3, 50, 37), 3, dtypes[d]));
        shoal_tensor *g = make_random(&random, INTS(3, 50, 37), 3, dtypes[d]);
        shoal_tensor *beside = shoal_nn_softmax(x, 1);
        CHECK_OK(shoal_backward(beside, g));
        shoal_tensor *gradient = shoal_clone(shoal_grad(x));
        CHECK_OK(shoal_set_grad(x, NULL));
        shoal_tensor *apart =
            shoal_transpose(shoal_nn_softmax(shoal_contiguous(shoal_transpose(x, 1, 2)), 2), 1, 2);
        CHECK_OK(shoal_backward(apart, g));
        CHECK_BYTES(doubles_of(beside), doubles_of(apart), 3 * 50 * 37 * 8);
        CHECK_BYTES(doubles_of(gradient), doubles_of(shoal_grad(x)), 3 * 50 * 37 * 8);
    }
}
