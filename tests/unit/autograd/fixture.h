/* SPDX-License-Identifier: MIT */
/* Small tensors for the tests of autograd. Everything is made in the innermost scope. */
#ifndef AUTOGRAD_FIXTURE_H
#define AUTOGRAD_FIXTURE_H

#include <math.h>

#include "fixtures/scoped.h"
#include "harness/test.h"
#include "shoal/shoal.h"

#include "fixtures/on_device.h"

/* A vector of f64 with these values. */
static inline shoal_tensor *make_vector(const double *values, int64_t count)
{
    shoal_tensor *tensor = shoal_empty(&count, 1, SHOAL_F64);
    double *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; data && i < count; i++) {
        data[i] = values[i];
    }
    return tensor;
}

static inline shoal_tensor *require_grad(shoal_tensor *tensor)
{
    CHECK_OK(shoal_set_requires_grad(tensor, true));
    return tensor;
}

/* A leaf [first, first + step, ...]. */
static inline shoal_tensor *make_leaf(int64_t count, double first, double step)
{
    shoal_tensor *tensor = shoal_empty(&count, 1, SHOAL_F64);
    double *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; data && i < count; i++) {
        data[i] = first + (double)i * step;
    }
    return require_grad(tensor);
}

static inline shoal_tensor *sum_all(shoal_tensor *tensor)
{
    return shoal_sum(tensor, NULL, 0, /*keeps_dims=*/false);
}

/* Element `index` of a contiguous f64 tensor; NaN when there is none. */
static inline double value_at(const shoal_tensor *tensor, int64_t index)
{
    const double *data = tensor && index < shoal_tensor_count(tensor) ? shoal_data(tensor) : NULL;
    return data ? data[index] : (double)NAN;
}

static inline double grad_at(const shoal_tensor *leaf, int64_t index)
{
    return value_at(shoal_grad(leaf), index);
}

#endif
