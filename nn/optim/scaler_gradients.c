/* SPDX-License-Identifier: MIT */
/* The gradients that a scaler looks at and multiplies: those of tensors and raw ones, of every floating dtype. */
#include <math.h>
#include <stdlib.h>

#include "math/loops.h"
#include "optim/optim.h"
#include "optim/scaler.h"
#include "shoal/autograd.h"
#include "shoal/fp_mode.h"
#include "shoal/update.h"
#include "common/try.h"

/* Elements of 16 bits are computed in pieces of so many, on the stack. */
#define PIECE 512

static shoal_status open_tensor(const char *call, const struct nn_parameter *parameter,
                                struct nn_gradients *gradients)
{
    shoal_tensor *gradient = shoal_grad(parameter->tensor);
    if (!gradient) {
        return SHOAL_OK;
    }
    NN_TRY(shoal_wait(gradient));
    shoal_device device = shoal_tensor_device(gradient);
    if (device != SHOAL_CPU && device != SHOAL_META) {
        gradients->apart[gradients->n_apart++] = gradient;
        return SHOAL_OK;
    }
    NN_TRY(nn_target_open(call, gradient, /*reads=*/true, &gradients->targets[gradients->n_targets]));
    gradients->counts[gradients->n_targets++] = (size_t)shoal_tensor_count(gradient);
    return SHOAL_OK;
}

static void open_shard(const shoal_nn_shard *shard, struct nn_gradients *gradients)
{
    if (shard->gradient && shard->count > 0) {
        /* Whoever asks for raw gradients to be unscaled lets them be written. */
        gradients->targets[gradients->n_targets] =
            (struct nn_target){.data = (void *)(uintptr_t)shard->gradient, .dtype = shard->gradient_dtype};
        gradients->counts[gradients->n_targets++] = shard->count;
    }
}

shoal_status nn_gradients_open(const char *call, const shoal_nn_optimizer *optimizer,
                               const shoal_nn_shard *shards, struct nn_gradients *gradients)
{
    size_t n_parameters = optimizer->n_parameters;
    *gradients = (struct nn_gradients){.targets = calloc(n_parameters, sizeof(gradients->targets[0])),
                                       .counts = calloc(n_parameters, sizeof(gradients->counts[0])),
                                       .apart = calloc(n_parameters, sizeof(gradients->apart[0]))};
    if (!gradients->targets || !gradients->counts || !gradients->apart) {
        return shoal_fail(SHOAL_ERR_NO_MEMORY, "%s: no memory for a list of %zu gradients", call,
                          n_parameters);
    }
    for (size_t i = 0; i < n_parameters; i++) {
        if (shards) {
            open_shard(&shards[i], gradients);
        } else {
            NN_TRY(open_tensor(call, &optimizer->parameters[i], gradients));
        }
    }
    return SHOAL_OK;
}

static bool is_half(shoal_dtype dtype)
{
    return nn_real(dtype) != dtype;
}

static bool is_finite(const void *data, size_t count, shoal_dtype dtype)
{
    double piece[PIECE];
    bool result = true;
    if (!is_half(dtype)) {
        return nn_loops_of(dtype)->is_finite(count, data);
    }
    for (size_t first = 0; result && first < count; first += PIECE) {
        size_t n = count - first < PIECE ? count - first : PIECE;
        nn_convert(n, (const char *)data + first * shoal_dtype_bytes(dtype), dtype, piece, nn_real(dtype));
        result = nn_loops_of(nn_real(dtype))->is_finite(n, piece);
    }
    return result;
}

static void scale(void *data, size_t count, shoal_dtype dtype, double factor)
{
    double piece[PIECE];
    if (!is_half(dtype)) {
        nn_loops_of(dtype)->scale(count, factor, data);
        return;
    }
    for (size_t first = 0; first < count; first += PIECE) {
        size_t n = count - first < PIECE ? count - first : PIECE;
        char *place = (char *)data + first * shoal_dtype_bytes(dtype);
        nn_convert(n, place, dtype, piece, nn_real(dtype));
        nn_loops_of(nn_real(dtype))->scale(n, factor, piece);
        nn_convert(n, piece, nn_real(dtype), place, dtype);
    }
}

/* The largest number of all is infinite or NaN if any is. */
static shoal_status are_finite_apart(const struct nn_gradients *gradients, bool *are_finite_out)
{
    double largest = 0;
    NN_TRY(shoal_find_largest(gradients->apart, gradients->n_apart, &largest));
    *are_finite_out = isfinite(largest);
    return SHOAL_OK;
}

shoal_status nn_gradients_are_finite(const struct nn_gradients *gradients, bool *are_finite_out)
{
    bool result = true;
    uint64_t mode = shoal_fp_mode_enter();
    for (size_t i = 0; result && i < gradients->n_targets; i++) {
        const struct nn_target *target = &gradients->targets[i];
        result = is_finite(target->data, gradients->counts[i], target->dtype);
    }
    shoal_fp_mode_leave(mode);
    *are_finite_out = result;
    return result && gradients->n_apart > 0 ? are_finite_apart(gradients, are_finite_out) : SHOAL_OK;
}

shoal_status nn_gradients_scale(const struct nn_gradients *gradients, double factor)
{
    NN_TRY(shoal_scale_tensors(gradients->apart, gradients->n_apart, factor));
    uint64_t mode = shoal_fp_mode_enter();
    for (size_t i = 0; i < gradients->n_targets; i++) {
        const struct nn_target *target = &gradients->targets[i];
        scale(target->data, gradients->counts[i], target->dtype, factor);
        if (target->tensor) {
            (void)nn_target_store(target); /* on the CPU */
        }
    }
    shoal_fp_mode_leave(mode);
    return SHOAL_OK;
}

void nn_gradients_close(struct nn_gradients *gradients)
{
    for (size_t i = 0; i < gradients->n_targets; i++) {
        nn_target_close(&gradients->targets[i]);
    }
    free(gradients->targets);
    free(gradients->counts);
    free(gradients->apart);
    *gradients = (struct nn_gradients){.targets = NULL};
}
