/* SPDX-License-Identifier: MIT */
/* What is done to gradients and values of modules that are sharded from outside: clipping, loading, broadcasting. */
#include "fixtures/module_bench.h"

/* Clipping ----------------------------------------------------------------------------------------------- */

/* Of the gradients of a net that is not sharded. */
static double norm_alone(struct net *net, double power)
{
    size_t n_parameters;
    double sum = 0.0;
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n_parameters);
    for (size_t i = 0; i < n_parameters; i++) {
        const float *values = shoal_data(shoal_grad(parameters[i]));
        for (int64_t k = 0; k < shoal_tensor_count(parameters[i]); k++) {
            double size = fabs((double)values[k]);
            sum = isinf(power) ? fmax(sum, size) : sum + pow(size, power);
        }
    }
    return isinf(power) ? sum : pow(sum, 1.0 / power);
}

/* Multiplied, and cut off. */
static void change_alone(struct net *net, float factor, float limit)
{
    size_t n_parameters;
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n_parameters);
    for (size_t i = 0; i < n_parameters; i++) {
        float *values = shoal_mutable_data(shoal_grad(parameters[i]));
        for (int64_t k = 0; k < shoal_tensor_count(parameters[i]); k++) {
            values[k] = fminf(fmaxf(values[k] * factor, -limit), limit);
        }
    }
}

static void check_norms(struct rank *self, int n_replicas)
{
    static const double powers[] = {1.0, 2.0, 3.0, (double)INFINITY};
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 4; step++) {
        double norm = -1.0;
        (void)net_pass(&bench.sharded, step, self->rank);
        net_pass_alone(&bench.alone, net_pass, step, self->n_ranks);
        double wanted = norm_alone(&bench.alone, powers[step]);
        double max_norm = wanted / 3;
        CHECK_OK(shoal_fully_shard_clip_grad_p_norm(bench.sharded.root, powers[step], max_norm, true, &norm));
        CHECK(fabs(norm - wanted) <= 1e-6 * wanted);
        change_alone(&bench.alone, (float)(max_norm / (norm + 1e-6)), INFINITY);
        net_check_same(&bench.sharded, &bench.alone);
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
    }
    bench_close(&bench);
}

TEST_RANKS(norms_of_shards, 3)
{
    check_norms(self, 1);
}

TEST_RANKS(norms_of_replicas_of_shards, 4)
{
    check_norms(self, 2);
}

TEST_RANKS(gradients_by_value, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fully_shard_clip_grad_value(bench.sharded.root, 1.0)); /* there are none */
    (void)net_pass(&bench.sharded, 0, self->rank);
    net_pass_alone(&bench.alone, net_pass, 0, self->n_ranks);
    float limit = (float)norm_alone(&bench.alone, (double)INFINITY) / 2;
    CHECK_OK(shoal_fully_shard_clip_grad_value(bench.sharded.root, (double)limit));
    change_alone(&bench.alone, 1.0F, limit);
    net_check_same(&bench.sharded, &bench.alone);
    bench_close(&bench);
}

/* Whatever tensor is the gradient is clipped. */
TEST_RANKS(a_gradient_of_somebody_else, 2)
{
    struct bench bench;
    double norm;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    (void)net_pass(&bench.sharded, 0, self->rank);
    shoal_tensor *weight = shoal_module_parameter(bench.sharded.root, "0.weight");
    shoal_tensor *mine = shoal_full(shoal_tensor_shape(weight), 1, 100.0, SHOAL_F32);
    CHECK_OK(shoal_set_grad(weight, mine));
    CHECK_OK(shoal_fully_shard_clip_grad_p_norm(bench.sharded.root, (double)INFINITY, 1.0, true, &norm));
    CHECK_DOUBLE(norm, 100.0);
    CHECK_DOUBLE((double)*(const float *)shoal_data(mine), (double)(100.0F * (float)(1.0 / (100.0 + 1e-6))));
    CHECK_OK(shoal_fully_shard_clip_grad_value(bench.sharded.root, 0.25));
    CHECK_DOUBLE((double)*(const float *)shoal_data(mine), 0.25);
    bench_close(&bench);
}

TEST_RANKS(clipping_that_is_refused, 2)
{
    struct bench bench;
    double norm = -1.0;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_module *root = bench.sharded.root;
    CHECK_OK(shoal_fully_shard_clip_grad_p_norm(root, 1.0, 1.0, true, &norm));
    CHECK_DOUBLE(norm, 0.0);
    CHECK_STATUS(shoal_fully_shard_clip_grad_p_norm(root, 0.0, 1.0, false, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("fully_shard_clip_grad_p_norm: power is 0");
    CHECK_STATUS(shoal_fully_shard_clip_grad_p_norm(root, 1.0, -1.0, false, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("max_norm is -1");
    CHECK_STATUS(shoal_fully_shard_clip_grad_value(root, -1.0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("fully_shard_clip_grad_value: max_value is -1");
    CHECK_STATUS(shoal_fully_shard_clip_grad_value(bench.sharded.layers[0], 1.0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("0 is not the root");
    CHECK_STATUS(shoal_fully_shard_clip_grad_value(bench.alone.root, 1.0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("not fully sharded");
    CHECK_STATUS(shoal_fully_shard_clip_grad_p_norm(NULL, 1.0, 1.0, false, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("module is NULL");
    bench_close(&bench);
}
