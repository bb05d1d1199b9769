/* SPDX-License-Identifier: MIT */
/*
 * Norms of gradients: one number, whatever the ranks, shards and replicas; padding does not count, replicas count once;
 * and what clipping does with it.
 */
#include "fixtures/fsdp_on_device.h"

#include "conformance/ops/scalar.h"
#include "fixtures/fsdp_model.h"

enum {
    COUNT = 37 /* no number of ranks divides it */
};

struct setting {
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
};

/* Two units, of COUNT elements and of one. */
static bool setting_open(struct rank *self, struct setting *s, enum model_mode mode, shoal_dtype dtype)
{
    struct model_case c = {.mode = mode, .n_ranks = self->n_ranks, .n_replicas = 2};
    *s = (struct setting){.world = rank_world_open(self, 0)};
    return s->world && CHECK_OK(model_create(s->world, &c, &s->mesh, &s->fsdp)) &&
           CHECK_OK(shoal_fsdp_add_param(s->fsdp, 0, "w", dtype, 1, (const int64_t[]){COUNT}, NULL, NULL)) &&
           CHECK_OK(shoal_fsdp_add_param(s->fsdp, 1, "b", dtype, 1, (const int64_t[]){1}, NULL, NULL));
}

static void setting_close(struct setting *s)
{
    shoal_fsdp_free(s->fsdp);
    shoal_mesh_free(s->mesh);
    CHECK_OK(shoal_world_close(s->world));
}

/* All ranks have the same gradient, so their mean is it. */
static void set_gradients(struct setting *s, shoal_dtype dtype, const double *values)
{
    CHECK_OK(shoal_fsdp_zero_grad(s->fsdp));
    for (int unit = 0; unit < 2; unit++) {
        CHECK_OK(shoal_fsdp_pre_forward(s->fsdp, unit));
        CHECK_OK(shoal_fsdp_post_forward(s->fsdp, unit));
    }
    for (int unit = 1; unit >= 0; unit--) {
        CHECK_OK(shoal_fsdp_pre_backward(s->fsdp, unit));
        char *grad = shoal_fsdp_grad(s->fsdp, unit);
        CHECK(grad != NULL);
        for (size_t i = 0; grad && i < (unit == 0 ? (size_t)COUNT : 1); i++) {
            scalar_store(dtype, grad + i * dtype_bytes(dtype),
                         (struct scalar){.re = values[unit == 0 ? i : COUNT]});
        }
        CHECK_OK(shoal_fsdp_post_backward(s->fsdp, unit));
    }
    CHECK_OK(shoal_fsdp_end_backward(s->fsdp));
}

/* The gradient of element i of w, or NaN where another rank has it. */
static double gradient_at(struct setting *s, shoal_dtype dtype, size_t i)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    CHECK_OK(shoal_fsdp_update_shard(s->fsdp, 0, &shard));
    bool is_here = (int64_t)i >= shard.offset && (int64_t)i < shard.offset + shard.length;
    const char *data = shard.grad;
    return is_here ? scalar_load(dtype, data + (i - (size_t)shard.offset) * dtype_bytes(dtype)).re
                   : (double)NAN;
}

/* Numbers of very different sizes: the sum of their squares is not exact in f64; of few digits: their mean over
   ranks is. */
static void draw(shoal_dtype dtype, double *values)
{
    uint32_t seed = 7;
    for (int i = 0; i <= COUNT; i++) {
        values[i] = ldexp(round_to(dtype == SHOAL_BF16 ? SHOAL_BF16 : SHOAL_F16, (double)model_draw(&seed)),
                          (i * 7) % 40 - 20);
    }
}

static double exact_norm(const double *values)
{
    struct model_sum sum = {0.0, 0.0};
    for (int i = 0; i <= COUNT; i++) {
        model_sum_add(&sum, values[i] * values[i]);
    }
    return sqrt(sum.high + sum.low);
}

static void check_clipping(struct setting *s, shoal_dtype dtype, const double *values, double max_norm)
{
    double norm = -1.0;
    set_gradients(s, dtype, values);
    CHECK_OK(shoal_fsdp_clip_grad_norm(s->fsdp, max_norm, 2.0, false, &norm));
    CHECK_DOUBLE(norm, exact_norm(values));
    double factor = max_norm / (norm + 1e-6);
    for (size_t i = 0; i < COUNT; i++) {
        double actual = gradient_at(s, dtype, i);
        double wanted = factor < 1.0
                            ? round_to(dtype, round_to(SHOAL_F32, values[i] * round_to(SHOAL_F32, factor)))
                            : values[i];
        CHECK(isnan(actual) || CHECK_DOUBLE(actual, wanted));
    }
}

static void check_mode(struct rank *self, enum model_mode mode)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16};
    static const double max_norms[] = {1.0, 1e-3, 1e9, 0.0, (double)INFINITY};
    for (int d = 0; d < 2; d++) {
        struct setting s;
        double values[COUNT + 1];
        REQUIRE(setting_open(self, &s, mode, dtypes[d]));
        draw(dtypes[d], values);
        for (int k = 0; k < 5; k++) {
            check_clipping(&s, dtypes[d], values, max_norms[k]);
        }
        setting_close(&s);
    }
}

#define RANKS(n)                         \
    TEST_RANKS(norms_of_##n##_shards, n) \
    {                                    \
        check_mode(self, MODEL_FSDP);    \
    }

RANKS(1)
RANKS(2)
RANKS(3)
RANKS(5)

TEST_RANKS(norms_of_replicas, 3)
{
    check_mode(self, MODEL_DDP);
}

TEST_RANKS(norms_of_replicas_of_shards, 4)
{
    check_mode(self, MODEL_HSDP);
}

TEST_RANKS(no_gradients_have_no_norm, 2)
{
    struct setting s;
    double norm = -1.0;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, SHOAL_F32));
    CHECK_OK(shoal_fsdp_clip_grad_norm(s.fsdp, 1.0, 2.0, false, &norm));
    CHECK_DOUBLE(norm, 0.0);
    setting_close(&s);
}

/* On whichever rank it is: all see it. Finite gradients are gone then, as in PyTorch. */
TEST_RANKS(norms_that_are_not_finite, 3)
{
    struct setting s;
    double values[COUNT + 1] = {0.0};
    double norm;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, SHOAL_F32));
    values[0] = 1.0;
    values[COUNT - 1] = (double)INFINITY;
    set_gradients(&s, SHOAL_F32, values);
    CHECK_OK(shoal_fsdp_clip_grad_norm(s.fsdp, 1.0, 2.0, false, &norm));
    CHECK(isinf(norm));
    double first = gradient_at(&s, SHOAL_F32, 0);
    CHECK(isnan(first) || first == 0.0);
    values[COUNT - 1] = (double)NAN;
    set_gradients(&s, SHOAL_F32, values);
    CHECK_OK(shoal_fsdp_clip_grad_norm(s.fsdp, 1.0, 2.0, false, &norm));
    CHECK(isnan(norm));
    CHECK(isnan(gradient_at(&s, SHOAL_F32, 0)));
    setting_close(&s);
}

/* Other norms ---------------------------------------------------------------------------------------------- */

/* Powers are rounded to f64 one by one; their sum is not. */
static double norm_of_power(const double *values, double power)
{
    struct model_sum sum = {0.0, 0.0};
    double largest = 0.0;
    for (int i = 0; i <= COUNT; i++) {
        double size = fabs(values[i]);
        largest = size > largest ? size : largest;
        model_sum_add(&sum, power == 1.0 ? size : pow(size, power));
    }
    double total = sum.high + sum.low;
    return isinf(power) ? largest : power == 1.0 ? total : pow(total, 1.0 / power);
}

static void check_power(struct setting *s, shoal_dtype dtype, const double *values, double power,
                        double max_norm)
{
    double norm = -1.0;
    power = test_power(power);
    set_gradients(s, dtype, values);
    CHECK_OK(shoal_fsdp_clip_grad_norm(s->fsdp, max_norm, power, true, &norm));
    CHECK_DOUBLE(norm, power == 2.0 ? exact_norm(values) : norm_of_power(values, power));
    double factor = max_norm / (norm + 1e-6);
    for (size_t i = 0; i < COUNT; i++) {
        double actual = gradient_at(s, dtype, i);
        double wanted = factor < 1.0
                            ? round_to(dtype, round_to(SHOAL_F32, values[i] * round_to(SHOAL_F32, factor)))
                            : values[i];
        CHECK(isnan(actual) || CHECK_DOUBLE(actual, wanted));
    }
}

static void check_powers(struct rank *self, enum model_mode mode)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16};
    static const double powers[] = {1.0, 2.0, 3.0, 0.5, (double)INFINITY};
    for (int d = 0; d < 2; d++) {
        struct setting s;
        double values[COUNT + 1];
        REQUIRE(setting_open(self, &s, mode, dtypes[d]));
        draw(dtypes[d], values);
        for (int k = 0; k < 5; k++) {
            check_power(&s, dtypes[d], values, powers[k], 1.0);
            check_power(&s, dtypes[d], values, powers[k], 1e30);
        }
        setting_close(&s);
    }
}

TEST_RANKS(other_norms_of_one, 1)
{
    check_powers(self, MODEL_FSDP);
}

TEST_RANKS(other_norms_of_shards, 3)
{
    check_powers(self, MODEL_FSDP);
}

TEST_RANKS(other_norms_of_replicas, 2)
{
    check_powers(self, MODEL_DDP);
}

TEST_RANKS(other_norms_of_replicas_of_shards, 4)
{
    check_powers(self, MODEL_HSDP);
}

/* An error on all ranks, whoever has it, and gradients as they were. */
TEST_RANKS(norms_that_must_be_finite, 3)
{
    static const double powers[] = {1.0, 2.0, 3.0, (double)INFINITY};
    static const double bad[] = {(double)INFINITY, (double)NAN};
    struct setting s;
    double values[COUNT + 1] = {0.0};
    REQUIRE(setting_open(self, &s, MODEL_FSDP, SHOAL_F32));
    values[0] = 3.0;
    for (int k = 0; k < 8; k++) {
        double norm = -1.0;
        values[COUNT - 1] = bad[k % 2];
        set_gradients(&s, SHOAL_F32, values);
        CHECK_STATUS(shoal_fsdp_clip_grad_norm(s.fsdp, 1.0, test_power(powers[k / 2]), true, &norm),
                     SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("clip_grad_norm: the norm of the gradients is");
        CHECK_DOUBLE(norm, -1.0);
        double first = gradient_at(&s, SHOAL_F32, 0);
        CHECK(isnan(first) || first == 3.0);
        CHECK_OK(shoal_fsdp_clip_grad_norm(s.fsdp, 1.0, test_power(powers[k / 2]), false, &norm));
        CHECK(k % 2 == 0 ? isinf(norm) : isnan(norm));
        first = gradient_at(&s, SHOAL_F32, 0);
        CHECK(isnan(first) || (k % 2 == 0 && first == 0.0));
    }
    setting_close(&s);
}

/* The limit is rounded to the dtype; -0 and NaN stay. */
static void check_values(struct rank *self, enum model_mode mode, shoal_dtype dtype, double limit)
{
    struct setting s;
    double values[COUNT + 1];
    REQUIRE(setting_open(self, &s, mode, dtype));
    draw(dtype, values);
    values[1] = (double)INFINITY;
    values[2] = -(double)INFINITY;
    values[3] = -0.0;
    values[COUNT - 1] = (double)NAN;
    set_gradients(&s, dtype, values);
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = gradient_at(&s, dtype, i); /* averaged and rounded */
    }
    CHECK_OK(shoal_fsdp_clip_grad_value(s.fsdp, limit));
    double bound = round_to(dtype, limit);
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    CHECK_OK(shoal_fsdp_update_shard(s.fsdp, 0, &shard));
    for (size_t i = 0; i < COUNT; i++) {
        bool is_here = (int64_t)i >= shard.offset && (int64_t)i < shard.offset + shard.length;
        double actual = gradient_at(&s, dtype, i);
        double wanted = values[i] > bound ? bound : values[i] < -bound ? -bound : values[i];
        CHECK(!is_here || (isnan(wanted) ? isnan(actual) : CHECK_DOUBLE(actual, wanted)));
    }
    setting_close(&s);
}

TEST_RANKS(by_value, 3)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16, SHOAL_F16, SHOAL_F64};
    for (int d = 0; d < 4; d++) {
        check_values(self, MODEL_FSDP, dtypes[d], 0.3);
        check_values(self, MODEL_DDP, dtypes[d], 1e9);
    }
    check_values(self, MODEL_FSDP, SHOAL_F32, 0.0);
    check_values(self, MODEL_FSDP, SHOAL_F32, (double)INFINITY);
}

TEST_RANKS(clipping_that_is_refused, 1)
{
    static const double powers[] = {0.0, -1.0, (double)NAN, -(double)INFINITY};
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, SHOAL_F32));
    for (int k = 0; k < 4; k++) {
        CHECK_STATUS(shoal_fsdp_clip_grad_norm(s.fsdp, 1.0, powers[k], false, NULL), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("clip_grad_norm: power is");
    }
    CHECK_STATUS(shoal_fsdp_clip_grad_norm(s.fsdp, -2.0, 1.0, false, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("max_norm is -2");
    CHECK_STATUS(shoal_fsdp_clip_grad_value(s.fsdp, -0.5), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("clip_grad_value: max_value is -0.5");
    CHECK_STATUS(shoal_fsdp_clip_grad_value(s.fsdp, (double)NAN), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_clip_grad_norm(NULL, 1.0, 1.0, false, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_clip_grad_value(NULL, 1.0), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 0));
    CHECK_STATUS(shoal_fsdp_clip_grad_norm(s.fsdp, 1.0, 1.0, false, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the backward pass has not been ended");
    CHECK_STATUS(shoal_fsdp_clip_grad_value(s.fsdp, 1.0), SHOAL_ERR_STATE);
    CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    setting_close(&s);
}
