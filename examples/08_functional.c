/* SPDX-License-Identifier: MIT */
/*
 * Collectives as functions on tensors: they return at once, the first use waits, and gradients flow through them.
 * Every rank has a part of the data; the loss is that of all of it.
 *
 *     shoal run -n 2 ./08_functional
 */
#include <stdio.h>

#include "shoal/shoal.h"

#define N_POINTS 64
#define N_STEPS 40

/* Points of y = 3 x - 2; each rank has other ones. */
static void make_points(int rank, float *x, float *y)
{
    for (int i = 0; i < N_POINTS; i++) {
        x[i] = (float)((i * 7 + rank * 3) % 20) / 10.0F - 1.0F;
        y[i] = 3.0F * x[i] - 2.0F;
    }
}

/* One step: the gradient of this rank's loss, averaged over the ranks while nothing else is left to do. */
static shoal_status step(shoal_group *group, shoal_tensor *weights, shoal_tensor *x, shoal_tensor *y,
                         float *loss_out)
{
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *slope = shoal_narrow(weights, 0, 0, 1);
    shoal_tensor *shift = shoal_narrow(weights, 0, 1, 1);
    shoal_tensor *error = shoal_sub(shoal_add(shoal_mul(x, slope), shift), y);
    shoal_tensor *loss = shoal_mean(shoal_mul(error, error), NULL, 0, false);
    status = shoal_backward(loss, NULL);
    if (status == SHOAL_OK) {
        /* Both are on their way before either is looked at. */
        shoal_tensor *gradient = shoal_all_reduce(shoal_grad(weights), SHOAL_AVG, group);
        shoal_tensor *mean_loss = shoal_all_reduce(shoal_detach(loss), SHOAL_AVG, group);
        status = shoal_scope_set_grad(false);
        (void)shoal_sub_(weights, shoal_mul_scalar(gradient, 0.3));
        const float *value = shoal_data(mean_loss);
        *loss_out = value ? *value : 0.0F;
    }
    shoal_status end = shoal_scope_end();
    if (status == SHOAL_OK && end == SHOAL_OK) {
        status = shoal_set_grad(weights, NULL);
    }
    return end == SHOAL_OK ? status : end;
}

static shoal_status fit(shoal_world *world, shoal_tensor *weights)
{
    float x[N_POINTS];
    float y[N_POINTS];
    int64_t shape[] = {N_POINTS};
    float loss = 0.0F;
    make_points(shoal_world_rank(world), x, y);
    shoal_tensor *inputs = shoal_from_memory(x, shape, 1, SHOAL_F32, NULL, NULL, NULL);
    shoal_tensor *targets = shoal_from_memory(y, shape, 1, SHOAL_F32, NULL, NULL, NULL);
    shoal_status status = shoal_set_requires_grad(weights, true);
    for (int i = 0; i < N_STEPS && status == SHOAL_OK; i++) {
        status = step(shoal_world_group(world), weights, inputs, targets, &loss);
    }
    const float *values = status == SHOAL_OK ? shoal_data(weights) : NULL;
    if (values) {
        printf("rank %d: y = %.3f x %+.3f, loss %.6f\n", shoal_world_rank(world), (double)values[0],
               (double)values[1], (double)loss);
    }
    return status;
}

int main(void)
{
    shoal_world *world;
    shoal_status status = shoal_world_open(NULL, &world);
    if (status == SHOAL_OK) {
        status = shoal_scope_begin();
    }
    if (status == SHOAL_OK) {
        shoal_tensor *weights = shoal_zeros((int64_t[]){2}, 1, SHOAL_F32);
        status = fit(world, weights);
        shoal_status end = shoal_scope_end();
        status = status == SHOAL_OK ? end : status;
    }
    if (status == SHOAL_OK) {
        status = shoal_world_close(world);
    }
    if (status != SHOAL_OK) {
        (void)fprintf(stderr, "08_functional: %s\n", shoal_error_text());
        return 1;
    }
    return 0;
}
