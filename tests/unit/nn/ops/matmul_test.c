/* SPDX-License-Identifier: MIT */
/*
 * Products against a naive one. The numbers are small and whole: their sums are exact in any order, so that results
 * are equal in every bit, whichever BLAS it is, and a result of 16 bits shows that it was rounded once.
 */
#include <stdio.h>

#include "unit/nn/fixture.h"

#define MAX_SIZE 40

enum form {
    PLAIN,
    TRANSPOSED,
    SPACED,   /* every second column */
    REPEATED, /* one row for all */
    N_FORMS
};

static shoal_tensor *make_matrix(struct test_random *random, int64_t rows, int64_t cols, enum form form,
                                 shoal_dtype dtype)
{
    shoal_tensor *tensor = form == TRANSPOSED ? shoal_zeros(INTS(cols, rows), 2, dtype)
                           : form == SPACED   ? shoal_zeros(INTS(rows, 2 * cols), 2, dtype)
                           : form == REPEATED ? shoal_zeros(INTS(1, cols), 2, dtype)
                                              : shoal_zeros(INTS(rows, cols), 2, dtype);
    shoal_tensor *numbers = shoal_zeros(shoal_tensor_shape(tensor), 2, SHOAL_F64);
    double *data = shoal_mutable_data(numbers);
    for (int64_t i = 0; i < shoal_tensor_count(numbers); i++) {
        data[i] = (double)test_random_below(random, 33) - 16;
    }
    tensor = shoal_copy_(tensor, numbers);
    return form == TRANSPOSED ? shoal_transpose(tensor, 0, 1)
           : form == SPACED   ? shoal_slice(tensor, 1, 0, INT64_MAX, 2)
           : form == REPEATED ? shoal_expand(tensor, INTS(rows, cols), 2)
                              : tensor;
}

/* Exact, then rounded once to the dtype. */
static shoal_tensor *multiply_plainly(shoal_tensor *a, shoal_tensor *b, shoal_tensor *bias)
{
    int64_t rows = shoal_tensor_shape(a)[0];
    int64_t n_terms = shoal_tensor_shape(a)[1];
    int64_t cols = shoal_tensor_shape(b)[1];
    const double *left = doubles_of(a);
    const double *right = doubles_of(b);
    const double *added = bias ? doubles_of(bias) : NULL;
    shoal_tensor *result = shoal_zeros(INTS(rows, cols), 2, SHOAL_F64);
    double *data = shoal_mutable_data(result);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) {
            double sum = added ? added[j] : 0;
            for (int64_t k = 0; k < n_terms; k++) {
                sum += left[i * n_terms + k] * right[k * cols + j];
            }
            data[i * cols + j] = sum;
        }
    }
    return shoal_to_dtype(result, shoal_tensor_dtype(a));
}

static bool is_equal(shoal_tensor *actual, shoal_tensor *expected)
{
    size_t bytes = (size_t)shoal_tensor_count(expected) * shoal_dtype_bytes(shoal_tensor_dtype(expected));
    return actual && shoal_tensor_dtype(actual) == shoal_tensor_dtype(expected) &&
           shoal_tensor_count(actual) == shoal_tensor_count(expected) &&
           memcmp(shoal_data(actual), shoal_data(expected), bytes) == 0;
}

static void check_product(struct test_random *random, shoal_dtype dtype)
{
    REQUIRE_OK(shoal_scope_begin());
    int64_t sizes[3];
    for (int i = 0; i < 3; i++) {
        sizes[i] = (int64_t)test_random_below(random, test_random_below(random, 3) == 0 ? 3 : MAX_SIZE);
    }
    enum form a_form = (enum form)test_random_below(random, N_FORMS);
    enum form b_form = (enum form)test_random_below(random, N_FORMS);
    shoal_tensor *a = make_matrix(random, sizes[0], sizes[1], a_form, dtype);
    shoal_tensor *b = make_matrix(random, sizes[1], sizes[2], b_form, dtype);
    shoal_tensor *bias = shoal_contiguous(shoal_select(make_matrix(random, 1, sizes[2], PLAIN, dtype), 0, 0));
    bool has_bias = test_random_below(random, 2) != 0;
    bool is_right = is_equal(shoal_nn_matmul(a, b), multiply_plainly(a, b, NULL)) &&
                    is_equal(shoal_nn_linear(a, shoal_transpose(b, 0, 1), has_bias ? bias : NULL),
                             multiply_plainly(a, b, has_bias ? bias : NULL));
    if (!is_right) {
        test_failed(__FILE__, __LINE__, "%s [%lld, %lld] x [%lld, %lld], forms %d and %d, bias %d: wrong",
                    shoal_dtype_name(dtype), (long long)sizes[0], (long long)sizes[1], (long long)sizes[1],
                    (long long)sizes[2], (int)a_form, (int)b_form, has_bias);
    }
    CHECK_OK(shoal_scope_end());
}

TEST(products_are_exact_and_rounded_once)
{
    begin_nn();
    const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16};
    struct test_random random = test_random_begin(3);
    for (int i = 0; i < 600 && !test_has_failed(); i++) {
        check_product(&random, dtypes[i % 4]);
    }
}

/* Larger than the blocks of the plain product, and of any BLAS. */
NN_TEST(larger_products_are_exact)
{
    struct test_random random = test_random_begin(4);
    shoal_tensor *a = make_matrix(&random, 131, 200, PLAIN, SHOAL_F32);
    shoal_tensor *b = make_matrix(&random, 200, 193, TRANSPOSED, SHOAL_F32);
    CHECK(is_equal(shoal_nn_matmul(a, b), multiply_plainly(a, b, NULL)));
}

/* Leading dimensions are rows, also when their strides cannot be merged. */
NN_TEST(leading_dimensions_are_rows)
{
    struct test_random random = test_random_begin(5);
    shoal_tensor *rows = make_matrix(&random, 24, 6, PLAIN, SHOAL_F32);
    shoal_tensor *b = make_matrix(&random, 6, 5, PLAIN, SHOAL_F32);
    shoal_tensor *deep = shoal_view(rows, INTS(2, 3, 4, 6), 4);
    shoal_tensor *product = shoal_nn_matmul(deep, b);
    CHECK_INT(shoal_tensor_n_dims(product), 4);
    CHECK_INT(shoal_tensor_shape(product)[2], 4);
    CHECK_INT(shoal_tensor_shape(product)[3], 5);
    shoal_tensor *expected = multiply_plainly(rows, b, NULL);
    CHECK(is_equal(product, expected));
    shoal_tensor *swapped = shoal_transpose(deep, 0, 2);
    CHECK(is_equal(shoal_contiguous(shoal_transpose(shoal_nn_matmul(swapped, b), 0, 2)), expected));
    shoal_tensor *part = shoal_narrow(deep, 1, 1, 2);
    CHECK(is_equal(shoal_nn_matmul(part, b),
                   shoal_contiguous(shoal_narrow(shoal_view(expected, INTS(2, 3, 4, 5), 4), 1, 1, 2))));
    shoal_tensor *vector = shoal_select(rows, 0, 3);
    CHECK(is_equal(shoal_nn_matmul(vector, b), shoal_contiguous(shoal_select(expected, 0, 3))));
    CHECK_INT(shoal_tensor_n_dims(shoal_nn_matmul(vector, b)), 1);
}

/* NaN in memory that is only written must not come through, and NaN in inputs must. */
NN_TEST(nans_come_from_inputs_only)
{
    struct test_random random = test_random_begin(6);
    for (int i = 0; i < 20; i++) {
        shoal_tensor *a = make_matrix(&random, 7, 9, PLAIN, SHOAL_F32);
        shoal_tensor *b = make_matrix(&random, 9, 3, PLAIN, SHOAL_F32);
        CHECK(is_equal(shoal_nn_matmul(a, b), multiply_plainly(a, b, NULL)));
        ((float *)shoal_mutable_data(a))[9] = NAN;
        const float *data = shoal_data(shoal_nn_matmul(a, b));
        CHECK(!isnan(data[0]) && isnan(data[3]) && isnan(data[5]) && !isnan(data[6]));
    }
}

NN_TEST(products_refuse_what_does_not_fit)
{
    shoal_tensor *x = shoal_zeros(INTS(2, 3), 2, SHOAL_F32);
    shoal_tensor *w = shoal_zeros(INTS(4, 3), 2, SHOAL_F32);
    shoal_tensor *f64 = shoal_zeros(INTS(4, 3), 2, SHOAL_F64);
    CHECK_SCOPE_ERROR(
        shoal_nn_matmul(x, w), SHOAL_ERR_INVALID,
        "nn.matmul: a has shape [2, 3], b [4, 3]: dimension 0 of size 4 is not the last one of a, 3");
    CHECK_SCOPE_ERROR(
        shoal_nn_linear(x, shoal_transpose(w, 0, 1), NULL), SHOAL_ERR_INVALID,
        "nn.linear: input has shape [2, 3], weight [3, 4]: dimension 1 of size 4 is not the last one of "
        "input, 3");
    CHECK_SCOPE_ERROR(shoal_nn_linear(x, w, shoal_zeros(INTS(3), 1, SHOAL_F32)), SHOAL_ERR_INVALID,
                      "nn.linear: bias has shape [3], not [4], the first dimension of weight");
    CHECK_SCOPE_ERROR(shoal_nn_linear(x, w, shoal_zeros(INTS(4), 1, SHOAL_F64)), SHOAL_ERR_INVALID,
                      "nn.linear: bias is f64, but input is f32");
    CHECK_SCOPE_ERROR(shoal_nn_linear(x, f64, NULL), SHOAL_ERR_INVALID,
                      "nn.linear: weight is f64, but input is f32");
    CHECK_SCOPE_ERROR(shoal_nn_matmul(shoal_zeros(INTS(2, 2), 2, SHOAL_I32), x), SHOAL_ERR_UNSUPPORTED,
                      "nn.matmul: a: i32 is not one of f64, f32, f16, bf16");
    CHECK_SCOPE_ERROR(shoal_nn_matmul(shoal_zeros(NULL, 0, SHOAL_F32), x), SHOAL_ERR_INVALID,
                      "nn.matmul: a has no dimensions");
    CHECK_SCOPE_ERROR(shoal_nn_matmul(x, shoal_zeros(INTS(3), 1, SHOAL_F32)), SHOAL_ERR_INVALID,
                      "nn.matmul: b has shape [3], which is not a matrix");
    CHECK_SCOPE_ERROR(shoal_nn_linear(x, NULL, NULL), SHOAL_ERR_INVALID, "nn.linear: weight is NULL");
}

/* Shapes without data. */
NN_TEST(the_meta_device_gives_shapes)
{
    shoal_tensor *x = shoal_empty_on(INTS(5, 2, 3), 3, SHOAL_BF16, SHOAL_META);
    shoal_tensor *w = shoal_empty_on(INTS(4, 3), 2, SHOAL_BF16, SHOAL_META);
    shoal_tensor *y = shoal_nn_linear(require_grad(x), w, NULL);
    CHECK_INT(shoal_tensor_device(y), SHOAL_META);
    CHECK_INT(shoal_tensor_count(y), 40);
    CHECK_INT(shoal_tensor_dtype(y), SHOAL_BF16);
    CHECK_OK(shoal_backward(sum_all(y), NULL));
    CHECK_INT(shoal_tensor_count(shoal_grad(x)), 30);
}

/* Ranks as threads share the BLAS; ranks as processes have one each. All get the same bits. */
TEST_RANKS(all_ranks_get_the_same_bits, 2)
{
    enum {
        ROWS = 33,
        TERMS = 70,
        COLS = 29
    };
    float *shared = self->shared;
    /* One after the other: begin_nn counts the blocks of the whole program, another thread's tensors too. */
    for (int rank = 0; rank < self->n_ranks; rank++) {
        if (self->rank == rank) {
            begin_nn();
        }
        test_barrier(self);
    }
    CHECK_OK(shoal_nn_set_threads(1));
    REQUIRE_OK(shoal_scope_begin());
    struct test_random random = {.state = 12345};
    shoal_tensor *a = make_random(&random, INTS(ROWS, TERMS), 2, SHOAL_F32);
    shoal_tensor *b = make_random(&random, INTS(TERMS, COLS), 2, SHOAL_F32);
    for (int i = 0; i < 20; i++) {
        const float *product = shoal_data(shoal_nn_matmul(a, b));
        memcpy(shared + self->rank * ROWS * COLS, product, sizeof(float) * ROWS * COLS);
        test_barrier(self);
        CHECK_BYTES(shared, shared + ROWS * COLS, sizeof(float) * ROWS * COLS);
        test_barrier(self);
    }
    CHECK_OK(shoal_scope_end());
}

TEST(all_of_this_without_a_blas)
{
    const char *const arguments[] = {test_program(), "product", "dimension", "nans", "device", NULL};
    const char *const environment[] = {"SHOAL_NN_BLAS=none", NULL};
    char output[4096];
    int code = test_run_program(arguments, environment, output, sizeof(output));
    if (code != 0) {
        test_failed(__FILE__, __LINE__, "without a BLAS: exit %d: %s", code, output);
    }
}

/* Large results of 16 bits are made of several panels of rows; small whole numbers are exact in every dtype. */
NN_TEST(panels_of_half_results)
{
    enum {
        M = 300,
        N = 8192,
        K = 3
    };
    const shoal_dtype dtypes[] = {SHOAL_BF16, SHOAL_F16};
    for (int d = 0; d < 2; d++) {
        shoal_tensor *a = shoal_empty(INTS(M, K), 2, SHOAL_F32);
        shoal_tensor *b = shoal_empty(INTS(N, K), 2, SHOAL_F32);
        shoal_tensor *bias = shoal_empty(INTS(N), 1, SHOAL_F32);
        float *left = shoal_mutable_data(a);
        float *right = shoal_mutable_data(b);
        float *added = shoal_mutable_data(bias);
        for (int i = 0; i < M * K; i++) {
            left[i] = (float)(i % 5 - 2);
        }
        for (int i = 0; i < N * K; i++) {
            right[i] = (float)(i % 7 - 3);
            added[i / K] = (float)(i % 3);
        }
        shoal_tensor *y = shoal_nn_linear(shoal_to_dtype(a, dtypes[d]), shoal_to_dtype(b, dtypes[d]),
                                          shoal_to_dtype(bias, dtypes[d]));
        const float *actual = shoal_data(shoal_to_dtype(y, SHOAL_F32));
        for (int i = 0; actual && i < M * N && !test_has_failed(); i++) {
            float expected = added[i % N];
            for (int k = 0; k < K; k++) {
                expected += left[i / N * K + k] * right[i % N * K + k];
            }
            if (actual[i] != expected) {
                test_failed(__FILE__, __LINE__, "%s element %d: %g, expected %g", shoal_dtype_name(dtypes[d]),
                            i, (double)actual[i], (double)expected);
            }
        }
    }
}
