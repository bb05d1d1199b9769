/* SPDX-License-Identifier: MIT */
/* Lists of tensors on one device: updates, scaling, the largest number, clipping; shoal_write. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/scoped.h"
#include "fixtures/test_device.h"
#include "harness/test.h"
#include "kernel/kernel.h"
#include "shoal/shoal.h"

#define N 1100 /* more than two of the pieces that 16-bit numbers are computed in */
#define INTS(...) ((int64_t[]){__VA_ARGS__})

static const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16};

/* Numbers in -1 .. 1 on the CPU. */
static shoal_tensor *make_numbers(struct test_random *random, const int64_t *shape, int n_dims,
                                  shoal_dtype dtype)
{
    shoal_tensor *tensor = shoal_empty(shape, n_dims, SHOAL_F64);
    double *values = shoal_mutable_data(tensor);
    for (int64_t i = 0; values && i < shoal_tensor_count(tensor); i++) {
        values[i] = 2 * test_random_unit(random) - 1;
    }
    return shoal_to_dtype(tensor, dtype);
}

/* A copy on the device of the test. */
static shoal_tensor *there(shoal_tensor *tensor)
{
    shoal_tensor *moved = shoal_to_device(tensor, test_device());
    return moved == tensor ? shoal_clone(tensor) : moved;
}

static shoal_tensor *there_zeros(const int64_t *shape, int n_dims, shoal_dtype dtype)
{
    return there(shoal_zeros(shape, n_dims, dtype));
}

static void check_same(shoal_tensor *found, shoal_tensor *wanted)
{
    shoal_tensor *here = shoal_contiguous(shoal_to_device(found, SHOAL_CPU));
    shoal_tensor *expected = shoal_contiguous(wanted);
    REQUIRE(here && expected);
    CHECK_INT(shoal_tensor_dtype(here), shoal_tensor_dtype(expected));
    CHECK_BYTES(shoal_data(here), shoal_data(expected), tensor_bytes(expected));
}

/* The numbers of AdamW in step t. */
static shoal_update adamw(int t)
{
    return (shoal_update){.lr = 0.25,
                          .decay = 0.01 * 0.1,
                          .beta1 = 0.9,
                          .one_minus_beta1 = 1 - 0.9,
                          .beta2 = 0.95,
                          .one_minus_beta2 = 1 - 0.95,
                          .step = 0.01 / (1 - pow(0.9, t)),
                          .root = sqrt(1 - pow(0.95, t)),
                          .eps = 1e-8};
}

/* Updates ---------------------------------------------------------------------------------------------- */

/* A step of AdamW, every operation written out. */
static void update_f32(const shoal_update *by, size_t count, const float *g, float *p, float *m, float *v)
{
    for (size_t i = 0; i < count; i++) {
        volatile float decayed = (float)by->decay * p[i]; /* no operation is contracted or kept wider */
        decayed = p[i] - decayed;
        volatile float old = (float)by->beta1 * m[i];
        volatile float fresh = (float)by->one_minus_beta1 * g[i];
        m[i] = old + fresh;
        old = (float)by->beta2 * v[i];
        fresh = g[i] * g[i];
        fresh = (float)by->one_minus_beta2 * fresh;
        v[i] = old + fresh;
        volatile float denominator = sqrtf(v[i]) / (float)by->root;
        denominator = denominator + (float)by->eps;
        volatile float step = (float)by->step * m[i];
        step = step / denominator;
        p[i] = decayed - step;
    }
}

SCOPED_TEST(updates_have_the_arithmetic_of_the_header)
{
    static float p[N], g[N], m[N], v[N], wanted[N];
    struct test_random random = test_random_begin(1);
    shoal_tensor *parameter = there(make_numbers(&random, INTS(N), 1, SHOAL_F32));
    shoal_update update = {.parameter = parameter,
                           .first_moment = there_zeros(INTS(N), 1, SHOAL_F32),
                           .second_moment = there_zeros(INTS(N), 1, SHOAL_F32)};
    REQUIRE_OK(shoal_read(parameter, p, sizeof p));
    for (int t = 1; t <= 4; t++) {
        update.gradient = there(make_numbers(&random, INTS(N), 1, SHOAL_F32));
        REQUIRE_OK(shoal_read(update.gradient, g, sizeof g));
        shoal_update now = adamw(t);
        now.parameter = update.parameter;
        now.gradient = update.gradient;
        now.first_moment = update.first_moment;
        now.second_moment = update.second_moment;
        uint64_t version = shoal_tensor_version(parameter);
        CHECK_OK(shoal_update_parameters(SHOAL_UPDATE_ADAMW, &now, 1));
        CHECK(shoal_tensor_version(parameter) > version);
        update_f32(&now, N, g, p, m, v);
        CHECK_OK(shoal_read(parameter, wanted, sizeof wanted));
        CHECK_BYTES(wanted, p, sizeof p);
        CHECK_OK(shoal_read(now.second_moment, wanted, sizeof wanted));
        CHECK_BYTES(wanted, v, sizeof v);
        now.lr = 0.3;
        CHECK_OK(shoal_update_parameters(SHOAL_UPDATE_SGD, &now, 1));
        for (int i = 0; i < N; i++) {
            volatile float product = 0.3f * g[i];
            p[i] = p[i] - product;
        }
        CHECK_OK(shoal_read(parameter, wanted, sizeof wanted));
        CHECK_BYTES(wanted, p, sizeof p);
    }
}

/* A parameter of 16 bits is updated as one of f32 with its values, and rounded once. */
SCOPED_TEST(parameters_and_gradients_of_all_dtypes)
{
    struct test_random random = test_random_begin(2);
    for (int k = 0; k < 16; k++) {
        const shoal_dtype dtype = dtypes[k / 4];
        const shoal_dtype real = dtype == SHOAL_F64 ? SHOAL_F64 : SHOAL_F32;
        shoal_tensor *p = make_numbers(&random, INTS(N), 1, dtype);
        shoal_tensor *g = make_numbers(&random, INTS(N), 1, dtypes[k % 4]);
        shoal_update pair[2];
        for (int i = 0; i < 2; i++) {
            pair[i] = adamw(1);
            pair[i].parameter = there(i == 0 ? p : shoal_to_dtype(p, real));
            pair[i].gradient = there(i == 0 ? g : shoal_to_dtype(g, real));
            pair[i].first_moment = there_zeros(INTS(N), 1, real);
            pair[i].second_moment = there_zeros(INTS(N), 1, real);
        }
        CHECK_OK(shoal_update_parameters(SHOAL_UPDATE_ADAMW, pair, 2));
        CHECK_OK(shoal_update_parameters(SHOAL_UPDATE_SGD, pair, 1));
        pair[1].parameter = there(shoal_to_dtype(shoal_to_dtype(pair[1].parameter, dtype), real));
        CHECK_OK(shoal_update_parameters(SHOAL_UPDATE_SGD, pair + 1, 1));
        check_same(pair[0].parameter, shoal_to_device(shoal_to_dtype(pair[1].parameter, dtype), SHOAL_CPU));
        check_same(pair[0].second_moment, shoal_to_device(pair[1].second_moment, SHOAL_CPU));
    }
}

/* Gradients have any strides; among others there are parameters without elements. */
SCOPED_TEST(gradients_have_any_strides)
{
    struct test_random random = test_random_begin(3);
    shoal_tensor *g = there(make_numbers(&random, INTS(7, 5), 2, SHOAL_F32));
    shoal_tensor *p = make_numbers(&random, INTS(5, 7), 2, SHOAL_F32);
    shoal_update updates[] = {
        {.parameter = there(p), .gradient = shoal_transpose(g, 0, 1), .lr = 0.5},
        {.parameter = there_zeros(INTS(0), 1, SHOAL_F32),
         .gradient = there_zeros(INTS(0), 1, SHOAL_F32),
         .lr = 0.5},
        {.parameter = there(p), .gradient = shoal_contiguous(shoal_transpose(g, 0, 1)), .lr = 0.5},
    };
    CHECK_OK(shoal_update_parameters(SHOAL_UPDATE_SGD, updates, 3));
    check_same(updates[0].parameter, shoal_to_device(updates[2].parameter, SHOAL_CPU));
    CHECK_OK(shoal_update_parameters(SHOAL_UPDATE_SGD, NULL, 0));
}

static void check_refused(const shoal_update *update, shoal_status status, const char *words)
{
    CHECK_STATUS(shoal_update_parameters(SHOAL_UPDATE_ADAMW, update, 1), status);
    CHECK_ERROR_TEXT(words);
}

SCOPED_TEST(updates_are_checked)
{
    shoal_tensor *x = there_zeros(INTS(2, 3), 2, SHOAL_F32);
    shoal_tensor *other = there_zeros(INTS(5), 1, SHOAL_F32);
    const shoal_update good = {.parameter = x,
                               .gradient = there_zeros(INTS(6), 1, SHOAL_F64),
                               .first_moment = there_zeros(INTS(6), 1, SHOAL_F32),
                               .second_moment = there_zeros(INTS(6), 1, SHOAL_F32),
                               .root = 1,
                               .eps = 1};
    shoal_update bad = good;
    CHECK_OK(shoal_update_parameters(SHOAL_UPDATE_ADAMW, &good, 1));
    CHECK_STATUS(shoal_update_parameters((shoal_update_rule)0, &good, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("update_parameters: rule: 0 is not a shoal_update_rule");
    CHECK_STATUS(shoal_update_parameters(SHOAL_UPDATE_SGD, NULL, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("update_parameters: updates is NULL");
    bad.parameter = NULL;
    check_refused(&bad, SHOAL_ERR_INVALID, "update_parameters: update 0: parameter is NULL");
    bad.parameter = shoal_transpose(x, 0, 1);
    check_refused(&bad, SHOAL_ERR_UNSUPPORTED, "update 0: parameter: it is not contiguous");
    bad.parameter = there_zeros(INTS(6), 1, SHOAL_I32);
    check_refused(&bad, SHOAL_ERR_UNSUPPORTED, "parameter: i32 is not one of f64, f32, f16, bf16");
    bad.parameter = shoal_empty_on(INTS(6), 1, SHOAL_F32, SHOAL_META);
    check_refused(&bad, SHOAL_ERR_STATE, "parameter: a tensor on device meta has no values");
    bad = good;
    bad.gradient = other;
    check_refused(&bad, SHOAL_ERR_INVALID, "gradient: 5 elements, but the parameter has 6");
    bad = good;
    bad.first_moment = bad.gradient;
    check_refused(&bad, SHOAL_ERR_INVALID, "first_moment: f64, but it is computed in f32");
    bad = good;
    bad.second_moment = NULL;
    check_refused(&bad, SHOAL_ERR_INVALID, "second_moment is NULL");
    CHECK_OK(shoal_update_parameters(SHOAL_UPDATE_SGD, &bad, 1));
}

/* Mixed devices are an error that names both, and nothing has changed. */
SCOPED_TEST(one_call_has_one_device)
{
    if (test_device() == SHOAL_CPU) {
        test_skip("it needs another device");
        return;
    }
    double largest = -1;
    shoal_tensor *mixed[] = {there(shoal_full(INTS(3), 1, 2, SHOAL_F32)),
                             shoal_full(INTS(3), 1, 2, SHOAL_F32)};
    const shoal_update updates[] = {{.parameter = mixed[0], .gradient = mixed[0], .lr = 1},
                                    {.parameter = mixed[1], .gradient = mixed[1], .lr = 1}};
    const shoal_update apart = {.parameter = mixed[0], .gradient = mixed[1], .lr = 1};
    CHECK_STATUS(shoal_update_parameters(SHOAL_UPDATE_SGD, updates, 2), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(
        test_words_apart("update 1: parameter: it is on device cpu, but tensors before it are on apart"));
    CHECK_STATUS(shoal_update_parameters(SHOAL_UPDATE_SGD, &apart, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(
        test_words_apart("update 0: gradient: it is on device cpu, but tensors before it are on apart"));
    CHECK_STATUS(shoal_scale_tensors(mixed, 2, 3), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(
        test_words_apart("scale_tensors: tensor 1: it is on device cpu, but tensors before it are on apart"));
    CHECK_STATUS(shoal_find_largest(mixed, 2, &largest), SHOAL_ERR_INVALID);
    CHECK_DOUBLE(largest, -1);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_set_requires_grad(mixed[i], true));
        CHECK_OK(shoal_set_grad(mixed[i], shoal_clone(shoal_detach(mixed[i]))));
    }
    CHECK_STATUS(shoal_clip_grad_norm(mixed, 2, 1, 2, false, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(test_words_apart(
        "clip_grad_norm: the gradient of leaf 1: it is on device cpu, but tensors before it are on apart"));
    CHECK_STATUS(shoal_clip_grad_value(mixed, 2, 1), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_scope_set_grad(false));
    check_same(mixed[0], shoal_full(INTS(3), 1, 2, SHOAL_F32));
    check_same(shoal_grad(mixed[0]), shoal_full(INTS(3), 1, 2, SHOAL_F32));
}

/* Numbers of lists --------------------------------------------------------------------------------------- */

SCOPED_TEST(scaling_has_one_rounding)
{
    struct test_random random = test_random_begin(4);
    for (int k = 0; k < 4; k++) {
        shoal_tensor *x = make_numbers(&random, INTS(30, 7), 2, dtypes[k]);
        shoal_tensor *wide = shoal_to_dtype(x, k == 0 ? SHOAL_F64 : SHOAL_F32);
        shoal_tensor *wanted = shoal_to_dtype(shoal_mul_scalar(wide, 1.0 / 3), dtypes[k]);
        shoal_tensor *whole = there(x);
        shoal_tensor *turned = there(x);
        shoal_tensor *lists[] = {whole, shoal_transpose(turned, 0, 1), there_zeros(INTS(0), 1, dtypes[k])};
        CHECK_OK(shoal_scale_tensors(lists, 3, 1.0 / 3));
        check_same(whole, wanted);
        check_same(turned, wanted);
    }
    /* Elements that share memory are one number. */
    shoal_tensor *one = there(shoal_full(INTS(1), 1, 2, SHOAL_F32));
    shoal_tensor *spread = shoal_expand(one, INTS(5), 1);
    CHECK_OK(shoal_scale_tensors(&spread, 1, 3));
    check_same(spread, shoal_full(INTS(5), 1, 6, SHOAL_F32));
    shoal_tensor *whole[] = {one, there_zeros(INTS(2), 1, SHOAL_I32)};
    CHECK_STATUS(shoal_scale_tensors(whole, 2, 3), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("scale_tensors: scaling is not supported for i32");
    check_same(one, shoal_full(INTS(1), 1, 6, SHOAL_F32));
    CHECK_STATUS(shoal_scale_tensors(NULL, 1, 3), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_scale_tensors(NULL, 0, 3));
}

SCOPED_TEST(the_largest_number_of_all)
{
    double largest = -1;
    shoal_tensor *list[] = {there(shoal_full(INTS(3, 2), 2, -2.5, SHOAL_F16)),
                            there(shoal_full(INTS(2000), 1, 1.25, SHOAL_F64)),
                            there_zeros(INTS(0), 1, SHOAL_F32)};
    CHECK_OK(shoal_find_largest(list, 3, &largest));
    CHECK_DOUBLE(largest, 2.5);
    CHECK_OK(shoal_find_largest(list + 2, 1, &largest));
    CHECK_DOUBLE(largest, 0);
    CHECK_OK(shoal_find_largest(NULL, 0, &largest));
    CHECK_DOUBLE(largest, 0);
    list[2] = there(shoal_full(INTS(2), 1, -(double)INFINITY, SHOAL_BF16));
    CHECK_OK(shoal_find_largest(list, 3, &largest));
    CHECK_DOUBLE(largest, (double)INFINITY);
    list[1] = shoal_transpose(there(shoal_full(INTS(2, 2), 2, (double)NAN, SHOAL_F32)), 0, 1);
    CHECK_OK(shoal_find_largest(list, 3, &largest));
    CHECK_DOUBLE(largest, (double)NAN);
    list[1] = there_zeros(INTS(2), 1, SHOAL_I64);
    CHECK_STATUS(shoal_find_largest(list, 3, &largest), SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(shoal_find_largest(list, 3, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("find_largest: largest_out is NULL");
}

/* Clipping ----------------------------------------------------------------------------------------------- */

enum {
    N_LEAVES = 4
};

/* Leaves with gradients on the CPU and the same ones on the device; one has none, one has other strides. */
static void make_leaves(struct test_random *random, shoal_tensor **here, shoal_tensor **apart)
{
    for (int i = 0; i < N_LEAVES; i++) {
        shoal_tensor *gradient = make_numbers(random, INTS(10 + i, 6), 2, dtypes[i]);
        here[i] = shoal_zeros(INTS(6, 10 + i), 2, dtypes[i]);
        apart[i] = there_zeros(INTS(6, 10 + i), 2, dtypes[i]);
        CHECK_OK(shoal_set_requires_grad(here[i], true));
        CHECK_OK(shoal_set_requires_grad(apart[i], true));
        if (i != 1) {
            shoal_tensor *turned = shoal_transpose(gradient, 0, 1);
            CHECK_OK(shoal_set_grad(here[i], shoal_clone(shoal_contiguous(turned))));
            CHECK_OK(shoal_set_grad(apart[i], shoal_transpose(there(gradient), 0, 1)));
        }
    }
}

/* The sums of squares of the kernels, and one factor for all. */
static double clip_plainly(shoal_tensor **leaves, double max_norm, double power)
{
    struct kernel_squares sums;
    double largest = 0;
    kernel_squares_init(&sums);
    for (int i = 0; i < N_LEAVES; i++) {
        const shoal_tensor *gradient = shoal_grad(leaves[i]);
        const size_t count = gradient ? (size_t)shoal_tensor_count(gradient) : 0;
        double own = 0;
        if (count > 0 && isinf(power)) {
            CHECK_OK(kernel_largest(shoal_tensor_dtype(gradient), shoal_data(gradient), count, &own));
            largest = own > largest ? own : largest;
        } else if (count > 0 && power == 2) {
            CHECK_OK(kernel_squares_add(&sums, shoal_tensor_dtype(gradient), shoal_data(gradient), count));
        } else if (count > 0) {
            CHECK_OK(
                kernel_powers_add(&sums, shoal_tensor_dtype(gradient), shoal_data(gradient), count, power));
        }
    }
    double sum = kernel_squares_round(&sums);
    double norm = isinf(power) ? largest : power == 2 ? sqrt(sum) : pow(sum, 1 / power);
    double factor = max_norm / (norm + 1e-6);
    for (int i = 0; i < N_LEAVES && factor < 1; i++) {
        shoal_tensor *gradient = shoal_grad(leaves[i]);
        void *data = gradient ? shoal_mutable_data(gradient) : NULL;
        if (data) {
            CHECK_OK(kernel_scale(shoal_tensor_dtype(gradient), data, data,
                                  (size_t)shoal_tensor_count(gradient), factor));
        }
    }
    return norm;
}

static void check_gradients(shoal_tensor **apart, shoal_tensor **here)
{
    for (int i = 0; i < N_LEAVES; i++) {
        if (shoal_grad(here[i])) {
            check_same(shoal_grad(apart[i]), shoal_grad(here[i]));
        }
    }
}

SCOPED_TEST(gradients_are_clipped_by_their_norm)
{
    const double powers[] = {2, 1, 3, (double)INFINITY};
    struct test_random random = test_random_begin(5);
    shoal_tensor *here[N_LEAVES];
    shoal_tensor *apart[N_LEAVES];
    for (int k = 0; k < 8; k++) {
        const double max_norm = k < 4 ? 0.75 : 1e6;
        double norm = 0;
        make_leaves(&random, here, apart);
        if (powers[k % 4] == 3 && test_is_cuda()) {
            CHECK_STATUS(shoal_clip_grad_norm(apart, N_LEAVES, max_norm, 3, true, &norm),
                         SHOAL_ERR_UNSUPPORTED);
            CHECK_ERROR_TEXT("powers 3");
            continue;
        }
        double wanted = clip_plainly(here, max_norm, powers[k % 4]);
        CHECK_OK(shoal_clip_grad_norm(apart, N_LEAVES, max_norm, powers[k % 4], true, &norm));
        CHECK_BYTES(&norm, &wanted, sizeof norm);
        check_gradients(apart, here);
    }
    CHECK_OK(shoal_clip_grad_norm(apart + 1, 1, 1, 2, true, NULL)); /* has no gradient */
    CHECK_OK(shoal_clip_grad_norm(NULL, 0, 1, 2, true, NULL));
    CHECK_OK(shoal_clip_grad_norm(NULL, 0, 0, 2, true, NULL)); /* would scale what there is */
}

SCOPED_TEST(a_norm_that_is_not_finite)
{
    double norm = 0;
    shoal_tensor *leaf = there_zeros(INTS(3), 1, SHOAL_F32);
    CHECK_OK(shoal_set_requires_grad(leaf, true));
    CHECK_OK(shoal_set_grad(leaf, there(shoal_full(INTS(3), 1, (double)INFINITY, SHOAL_F32))));
    CHECK_STATUS(shoal_clip_grad_norm(&leaf, 1, 1, 2, true, &norm), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("clip_grad_norm: the norm of the gradients is inf, but must be finite (must_be_finite)");
    CHECK_DOUBLE(norm, 0);
    check_same(shoal_grad(leaf), shoal_full(INTS(3), 1, (double)INFINITY, SHOAL_F32));
    CHECK_OK(shoal_clip_grad_norm(&leaf, 1, 1, 2, false, &norm));
    CHECK_DOUBLE(norm, (double)INFINITY);
    float values[3];
    CHECK_OK(shoal_read(shoal_grad(leaf), values, sizeof values));
    CHECK(isnan(values[0]) && isnan(values[2]));
}

SCOPED_TEST(gradients_are_clipped_by_value)
{
    struct test_random random = test_random_begin(6);
    shoal_tensor *here[N_LEAVES];
    shoal_tensor *apart[N_LEAVES];
    make_leaves(&random, here, apart);
    for (int i = 0; i < N_LEAVES; i++) {
        shoal_tensor *gradient = shoal_grad(here[i]);
        void *data = gradient ? shoal_mutable_data(gradient) : NULL;
        if (data) {
            CHECK_OK(
                kernel_clamp(shoal_tensor_dtype(gradient), data, (size_t)shoal_tensor_count(gradient), 0.3));
        }
    }
    CHECK_OK(shoal_clip_grad_value(apart, N_LEAVES, 0.3));
    check_gradients(apart, here);
    CHECK_OK(shoal_clip_grad_value(apart + 1, 1, 0.3)); /* has no gradient */
    CHECK_OK(shoal_clip_grad_value(NULL, 0, 0.3));
    CHECK_STATUS(shoal_clip_grad_value(apart, N_LEAVES, -1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("clip_grad_value: max_value is -1, but must be 0 or more");
    CHECK_STATUS(shoal_clip_grad_norm(apart, N_LEAVES, -1, 2, true, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_clip_grad_norm(apart, N_LEAVES, 1, 0, true, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_clip_grad_value(NULL, 1, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("clip_grad_value: leaves is NULL");
    apart[2] = NULL;
    CHECK_STATUS(shoal_clip_grad_value(apart, N_LEAVES, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("clip_grad_value: leaf 2 is NULL");
}

/* Writing ------------------------------------------------------------------------------------------------ */

SCOPED_TEST(values_are_written)
{
    float values[] = {1, 2, 3, 4, 5, 6};
    shoal_tensor *x = there_zeros(INTS(2, 3), 2, SHOAL_F32);
    uint64_t version = shoal_tensor_version(x);
    CHECK_OK(shoal_write(x, values, sizeof values));
    CHECK(shoal_tensor_version(x) > version);
    float found[6];
    CHECK_OK(shoal_read(x, found, sizeof found));
    CHECK_BYTES(found, values, sizeof values);
    CHECK_OK(shoal_write(shoal_transpose(x, 0, 1), values, sizeof values));
    CHECK_OK(shoal_read(x, found, sizeof found));
    CHECK_BYTES(found, ((const float[]){1, 3, 5, 2, 4, 6}), sizeof found);
    CHECK_OK(shoal_write(there_zeros(INTS(0), 1, SHOAL_F32), NULL, 0));
    CHECK_STATUS(shoal_write(x, values, 20), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("write: the tensor f32 [2, 3] has 24 bytes, the buffer 20");
    CHECK_STATUS(shoal_write(x, NULL, 24), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_write(NULL, values, 24), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_write(shoal_empty_on(INTS(6), 1, SHOAL_F32, SHOAL_META), values, 24), SHOAL_ERR_STATE);
    shoal_tensor *spread = shoal_expand(there_zeros(INTS(1), 1, SHOAL_F32), INTS(6), 1);
    CHECK_STATUS(shoal_write(spread, values, 24), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("write: tensor: elements of shape [6] with strides [0] share memory");
}

/* Later and failing -------------------------------------------------------------------------------------- */

/* What a call was given may change and end as soon as it has returned. Nothing is done before the device goes on. */
SCOPED_TEST(work_is_done_later)
{
    if (test_device() == SHOAL_CPU) {
        test_skip("work of the CPU is done at once");
        return;
    }
    TEST_NEEDS_CONTROLS();
    float values[] = {1, 2, 3};
    shoal_tensor *x = there_zeros(INTS(3), 1, SHOAL_F32);
    shoal_tensor *turned = there_zeros(INTS(3, 1), 2, SHOAL_F32);
    test_finish(test_device());
    atomic_store(&test_apart()->is_held, 1);
    CHECK_OK(shoal_write(x, values, sizeof values));
    CHECK_OK(shoal_write(turned, values, sizeof values));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *rows = shoal_cat((shoal_tensor *[]){turned, turned}, 2, 1);
    shoal_update updates[] = {{.parameter = x, .gradient = shoal_narrow(rows, 1, 1, 1), .lr = 0.5}};
    shoal_tensor *lists[] = {x, turned};
    CHECK_OK(shoal_update_parameters(SHOAL_UPDATE_SGD, updates, 1));
    CHECK_OK(shoal_scale_tensors(lists, 2, 2));
    memset(values, 0, sizeof values);
    memset(updates, 0, sizeof updates);
    memset(lists, 0, sizeof lists);
    REQUIRE_OK(shoal_scope_end());
    atomic_store(&test_apart()->is_held, 0);
    float found[3];
    CHECK_OK(shoal_read(x, found, sizeof found));
    CHECK_BYTES(found, ((const float[]){1, 2, 3}), sizeof found);
}

/* All calls, one after the other. */
static shoal_status use_all(void *context)
{
    double *norm = context;
    double largest = 0;
    shoal_tensor *leaf = NULL;
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    leaf = shoal_to_device(shoal_full(INTS(2, 3), 2, 1, SHOAL_F32), test_device());
    shoal_tensor *gradient = shoal_to_device(shoal_full(INTS(3, 2), 2, 4, SHOAL_F32), test_device());
    shoal_tensor *turned = shoal_transpose(gradient, 0, 1);
    if (leaf && turned && (status = shoal_set_requires_grad(leaf, true)) == SHOAL_OK &&
        (status = shoal_set_grad(leaf, turned)) == SHOAL_OK &&
        (status = shoal_clip_grad_norm(&leaf, 1, 1, 2, true, norm)) == SHOAL_OK &&
        (status = shoal_clip_grad_value(&leaf, 1, 0.25)) == SHOAL_OK &&
        (status = shoal_scale_tensors(&turned, 1, 0.5)) == SHOAL_OK &&
        (status = shoal_find_largest(&turned, 1, &largest)) == SHOAL_OK) {
        const shoal_update update = {.parameter = leaf, .gradient = turned, .lr = 1};
        const float values[6] = {0};
        status = shoal_update_parameters(SHOAL_UPDATE_SGD, &update, 1);
        status = status == SHOAL_OK ? shoal_write(turned, values, sizeof values) : status;
        *norm += largest;
    }
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

TEST(every_allocation_can_fail)
{
    double norm = 0;
    if (test_device() != SHOAL_CPU) {
        test_skip("the device has memory of its own");
        return;
    }
    CHECK(test_sweep_allocations(use_all, &norm) > 10);
}

TEST(every_call_of_the_device_can_fail)
{
    double wanted = 0;
    if (test_device() == SHOAL_CPU) {
        test_skip("it needs another device");
        return;
    }
    TEST_NEEDS_CONTROLS();
    struct apart_settings *settings = test_apart();
    REQUIRE_OK(use_all(&wanted));
    int64_t n_calls = (int64_t)atomic_load(&settings->n_calls);
    REQUIRE_OK(use_all(&wanted));
    n_calls = (int64_t)atomic_load(&settings->n_calls) - n_calls;
    REQUIRE(n_calls > 15);
    size_t blocks = test_live_blocks();
    for (int64_t i = 1; i <= n_calls; i++) {
        double norm = 0;
        uint64_t n_bytes = atomic_load(&settings->n_bytes);
        atomic_store(&settings->fail_at, i);
        CHECK_STATUS(use_all(&norm), SHOAL_ERR_SYSTEM);
        CHECK_ERROR_TEXT(test_words_apart("device apart has failed: "));
        test_forget_failure();
        CHECK_INT(atomic_load(&settings->n_bytes), n_bytes);
        CHECK_OK(use_all(&norm)); /* this also frees a copy that came too late */
        CHECK_INT(test_live_blocks(), blocks);
        CHECK_DOUBLE(norm, wanted);
    }
}
