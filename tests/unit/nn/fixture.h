/* SPDX-License-Identifier: MIT */
/* What the tests of libshoal_nn share: a scope with the ops registered, tensors from numbers, numbers from tensors. */
#ifndef NN_FIXTURE_H
#define NN_FIXTURE_H

#include <math.h>
#include <string.h>

#include "fixtures/scoped.h"
#include "harness/test.h"
#include "shoal/shoal.h"
#include "shoal_nn/nn.h"

#define INTS(...) ((int64_t[]){__VA_ARGS__})

/* Ops stay registered for ever: their blocks are not lost. */
static inline void begin_nn(void)
{
    size_t n_before = test_live_blocks();
    CHECK_OK(shoal_nn_init());
    test_keep_blocks(test_live_blocks() - n_before);
}

/* A test body in a scope of its own, which must end without error. */
#define NN_TEST(name)                    \
    static void name##_in_scope(void);   \
    TEST(name)                           \
    {                                    \
        begin_nn();                      \
        REQUIRE_OK(shoal_scope_begin()); \
        name##_in_scope();               \
        CHECK_OK(shoal_scope_end());     \
    }                                    \
    static void name##_in_scope(void)

/* Numbers as a contiguous tensor of any floating dtype. */
static inline shoal_tensor *make_tensor(const double *values, const int64_t *shape, int n_dims,
                                        shoal_dtype dtype)
{
    shoal_tensor *tensor = shoal_empty(shape, n_dims, SHOAL_F64);
    double *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; data && i < shoal_tensor_count(tensor); i++) {
        data[i] = values[i];
    }
    return shoal_to_dtype(tensor, dtype);
}

/* Numbers in -1 .. 1. */
static inline shoal_tensor *make_random(struct test_random *random, const int64_t *shape, int n_dims,
                                        shoal_dtype dtype)
{
    shoal_tensor *tensor = shoal_empty(shape, n_dims, SHOAL_F64);
    double *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; data && i < shoal_tensor_count(tensor); i++) {
        data[i] = 2 * test_random_unit(random) - 1;
    }
    return shoal_to_dtype(tensor, dtype);
}

static inline shoal_tensor *make_indices(const int64_t *values, const int64_t *shape, int n_dims,
                                         shoal_dtype dtype)
{
    shoal_tensor *tensor = shoal_empty(shape, n_dims, SHOAL_I64);
    int64_t *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; data && i < shoal_tensor_count(tensor); i++) {
        data[i] = values[i];
    }
    return shoal_to_dtype(tensor, dtype);
}

/* All elements as doubles, row-major; the tensor belongs to the scope. */
static inline const double *doubles_of(shoal_tensor *tensor)
{
    bool has_grad = shoal_scope_has_grad();
    CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *wide = shoal_contiguous(shoal_to_dtype(tensor, SHOAL_F64));
    CHECK_OK(shoal_scope_set_grad(has_grad));
    return shoal_data(wide);
}

static inline shoal_tensor *require_grad(shoal_tensor *tensor)
{
    CHECK_OK(shoal_set_requires_grad(tensor, true));
    return tensor;
}

static inline shoal_tensor *sum_all(shoal_tensor *tensor)
{
    return shoal_sum(tensor, NULL, 0, /*keeps_dims=*/false);
}

/* What ops compute in, from the widest. */
static const shoal_dtype nn_dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16};

/* Of numbers up to 1, after a rounding of the inputs that the expected ones have had too. */
static inline double tolerance_of(shoal_dtype dtype)
{
    return dtype == SHOAL_F64 ? 1e-14 : dtype == SHOAL_F32 ? 1e-6 : dtype == SHOAL_F16 ? 1e-3 : 8e-3;
}

static inline void check_close(shoal_tensor *actual, const double *expected, double tolerance,
                               const char *what)
{
    const double *values = doubles_of(actual);
    for (int64_t i = 0; values && i < shoal_tensor_count(actual); i++) {
        if (!(fabs(values[i] - expected[i]) <= tolerance * (1 + fabs(expected[i])))) {
            test_failed(__FILE__, __LINE__, "%s: element %lld is %.17g, expected %.17g", what, (long long)i,
                        values[i], expected[i]);
        }
    }
}

#endif
