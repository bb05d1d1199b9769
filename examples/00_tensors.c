/* SPDX-License-Identifier: MIT */
/* Fits y = 3 x - 2 to 64 points by gradient descent: tensors, scopes, gradients, and one check for errors. */
#include <stdio.h>

#include "shoal/shoal.h"

#define N_POINTS 64

static float xs[N_POINTS];
static float ys[N_POINTS];

/* One step; the loss before it. Everything made in here ends with its scope. */
static shoal_status step(shoal_tensor *slope, shoal_tensor *offset, float *loss_out)
{
    const int64_t shape[] = {N_POINTS};
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *x = shoal_from_memory(xs, shape, 1, SHOAL_F32, NULL, NULL, NULL);
    shoal_tensor *y = shoal_from_memory(ys, shape, 1, SHOAL_F32, NULL, NULL, NULL);
    shoal_tensor *error = shoal_sub(shoal_add(shoal_mul(slope, x), offset), y);
    shoal_tensor *loss = shoal_mean(shoal_mul(error, error), NULL, 0, false);
    status = shoal_backward(loss, NULL);
    if (status == SHOAL_OK) {
        *loss_out = *(const float *)shoal_data(loss);
        status = shoal_scope_set_grad(false);
        shoal_sub_(slope, shoal_mul_scalar(shoal_grad(slope), 0.5));
        shoal_sub_(offset, shoal_mul_scalar(shoal_grad(offset), 0.5));
    }
    shoal_status end = shoal_scope_end(); /* the first error of any call above */
    return end != SHOAL_OK ? end : status;
}

static shoal_status train(void)
{
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *slope = shoal_zeros(NULL, 0, SHOAL_F32);
    shoal_tensor *offset = shoal_zeros(NULL, 0, SHOAL_F32);
    status = shoal_set_requires_grad(slope, true);
    if (status == SHOAL_OK) {
        status = shoal_set_requires_grad(offset, true);
    }
    for (int i = 1; i <= 60 && status == SHOAL_OK; i++) {
        float loss = 0.0f;
        status = step(slope, offset, &loss);
        if (status == SHOAL_OK && i % 10 == 0) {
            printf("step %2d  loss %.6f  y = %.4f x %+.4f\n", i, (double)loss,
                   (double)*(const float *)shoal_data(slope), (double)*(const float *)shoal_data(offset));
        }
        /* Gradients add up until they are taken away. */
        if (status == SHOAL_OK) {
            status = shoal_set_grad(slope, NULL);
        }
        if (status == SHOAL_OK) {
            status = shoal_set_grad(offset, NULL);
        }
    }
    shoal_status end = shoal_scope_end();
    return end != SHOAL_OK ? end : status;
}

int main(void)
{
    for (int i = 0; i < N_POINTS; i++) {
        xs[i] = (float)i / N_POINTS * 2.0f - 1.0f;
        ys[i] = 3.0f * xs[i] - 2.0f;
    }
    shoal_status status = train();
    if (status != SHOAL_OK) {
        (void)fprintf(stderr, "%s: %s\n", shoal_status_name(status), shoal_error_text());
        return 1;
    }
    return 0;
}
