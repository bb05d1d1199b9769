/* SPDX-License-Identifier: MIT */
/* The state of optimizers: moments that are made when they are needed, read and set. */
#include <string.h>

#include "check.h"
#include "ops.h"
#include "optim.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "try.h"
#include "values.h"

/* Zeros like the parameter, referenced. */
static shoal_status make_moment(const struct nn_parameter *parameter, shoal_tensor **moment_out)
{
    const int64_t count = (int64_t)parameter->count;
    const shoal_tensor *like = parameter->tensor;
    NN_TRY(shoal_scope_begin());
    shoal_tensor *zeros = shoal_zeros(like ? shoal_tensor_shape(like) : &count,
                                      like ? shoal_tensor_n_dims(like) : 1, nn_real(parameter->dtype));
    *moment_out = shoal_tensor_ref(zeros);
    return shoal_scope_end();
}

shoal_status nn_make_moments(struct nn_parameter *parameter)
{
    for (int i = 0; i < NN_N_MOMENTS; i++) {
        if (!parameter->moments[i]) {
            NN_TRY(make_moment(parameter, &parameter->moments[i]));
        }
    }
    return SHOAL_OK;
}

shoal_status shoal_nn_optimizer_get_state(const shoal_nn_optimizer *optimizer, size_t index,
                                          shoal_nn_optimizer_state *state_out)
{
    static const char call[] = "nn_optimizer_get_state";
    NN_TRY(nn_check_index(call, optimizer, index));
    if (!state_out) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: state_out is NULL", call);
    }
    NN_TRY(nn_check_size(call, "state_out", state_out->struct_size, sizeof(*state_out)));
    const struct nn_parameter *parameter = &optimizer->parameters[index];
    state_out->n_updates = parameter->n_updates;
    state_out->first_moment = parameter->moments[0];
    state_out->second_moment = parameter->moments[1];
    return SHOAL_OK;
}

static shoal_status check_moment(const char *call, const struct nn_parameter *parameter, const char *name,
                                 const shoal_tensor *moment)
{
    shoal_dtype real = nn_real(parameter->dtype);
    if (moment &&
        (shoal_tensor_dtype(moment) != real || (size_t)shoal_tensor_count(moment) != parameter->count)) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s is %s of shape %s, but the state has %zu elements of %s",
                          call, name, shoal_dtype_name(shoal_tensor_dtype(moment)),
                          nn_shape_text(moment).text, parameter->count, shoal_dtype_name(real));
    }
    return SHOAL_OK;
}

/* A copy of the values in a moment of our own, referenced. */
static shoal_status copy_moment(const struct nn_parameter *parameter, shoal_tensor *from,
                                shoal_tensor **moment_out)
{
    *moment_out = NULL;
    if (!from) {
        return SHOAL_OK;
    }
    NN_TRY(make_moment(parameter, moment_out));
    shoal_status status = shoal_scope_begin();
    if (status == SHOAL_OK) {
        status = shoal_scope_set_grad(false);
        shoal_tensor *flat =
            shoal_reshape(from, shoal_tensor_shape(*moment_out), shoal_tensor_n_dims(*moment_out));
        (void)shoal_copy_(*moment_out, flat);
        shoal_status ended = shoal_scope_end();
        status = status == SHOAL_OK ? ended : status;
    }
    if (status != SHOAL_OK) {
        shoal_tensor_unref(*moment_out);
        *moment_out = NULL;
    }
    return status;
}

shoal_status shoal_nn_optimizer_set_state(shoal_nn_optimizer *optimizer, size_t index,
                                          const shoal_nn_optimizer_state *state)
{
    static const char call[] = "nn_optimizer_set_state";
    NN_TRY(nn_check_index(call, optimizer, index));
    if (!state) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: state is NULL", call);
    }
    NN_TRY(nn_check_size(call, "state", state->struct_size, sizeof(*state)));
    struct nn_parameter *parameter = &optimizer->parameters[index];
    if (state->n_updates < 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: n_updates: %lld is negative", call,
                          (long long)state->n_updates);
    }
    NN_TRY(check_moment(call, parameter, "first_moment", state->first_moment));
    NN_TRY(check_moment(call, parameter, "second_moment", state->second_moment));
    shoal_tensor *moments[NN_N_MOMENTS];
    NN_TRY(copy_moment(parameter, state->first_moment, &moments[0]));
    shoal_status status = copy_moment(parameter, state->second_moment, &moments[1]);
    if (status != SHOAL_OK) {
        shoal_tensor_unref(moments[0]);
        return status;
    }
    for (int i = 0; i < NN_N_MOMENTS; i++) {
        shoal_tensor_unref(parameter->moments[i]);
        parameter->moments[i] = moments[i];
    }
    parameter->n_updates = state->n_updates;
    return SHOAL_OK;
}
