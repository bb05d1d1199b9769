/* SPDX-License-Identifier: MIT */
/* The state of optimizers: moments that are made when they are needed, read and set. */
#include <stdbool.h>
#include <string.h>

#include "common/struct_size.h"
#include "ops/ops.h"
#include "optim/optim.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "common/try.h"
#include "ops/values.h"

/* Where the state is: with the parameter, if that has data. */
static shoal_device device_of(const struct nn_parameter *parameter)
{
    shoal_device device = parameter->tensor ? shoal_tensor_device(parameter->tensor) : SHOAL_CPU;
    return device == SHOAL_META ? SHOAL_CPU : device;
}

/* NULL, with the error in the scope, on failure. */
static shoal_tensor *make_zeros(const int64_t *shape, int n_dims, shoal_dtype dtype, shoal_device device)
{
    const shoal_op *op = NULL;
    shoal_value result = {.kind = SHOAL_VALUE_NONE};
    const shoal_value arguments[] = {
        {.kind = SHOAL_VALUE_INTS, .count = (size_t)n_dims, .as.integers = shape},
        {.kind = SHOAL_VALUE_DTYPE, .as.dtype = dtype},
        {.kind = SHOAL_VALUE_STRING, .as.string = shoal_device_name(device)}};
    shoal_status status = shoal_op_find("zeros", &op);
    status = status == SHOAL_OK ? shoal_op_call(op, arguments, 3, &result) : status;
    return status == SHOAL_OK ? result.as.tensor : NULL;
}

/* Zeros like the parameter, where its state is, referenced. */
static shoal_status make_moment(const struct nn_parameter *parameter, shoal_tensor **moment_out)
{
    const int64_t count = (int64_t)parameter->count;
    const shoal_tensor *like = parameter->tensor;
    NN_TRY(shoal_scope_begin());
    shoal_tensor *zeros =
        make_zeros(like ? shoal_tensor_shape(like) : &count, like ? shoal_tensor_n_dims(like) : 1,
                   nn_real(parameter->dtype), device_of(parameter));
    shoal_tensor *kept = shoal_tensor_ref(zeros);
    shoal_status status = shoal_scope_end();
    if (status != SHOAL_OK) {
        shoal_tensor_unref(kept);
        return status;
    }
    *moment_out = kept;
    return SHOAL_OK;
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
    const struct nn_parameter *parameter = &optimizer->parameters[index];
    const shoal_nn_optimizer_state state = {.struct_size = sizeof(state),
                                            .n_updates = parameter->n_updates,
                                            .first_moment = parameter->moments[0],
                                            .second_moment = parameter->moments[1]};
    return nn_struct_write(call, "state_out", state_out, &state, sizeof(state));
}

static bool has_shape(const struct nn_parameter *parameter, const shoal_tensor *moment)
{
    const shoal_tensor *like = parameter->tensor;
    if (!like) {
        return (size_t)shoal_tensor_count(moment) == parameter->count;
    }
    int n_dims = shoal_tensor_n_dims(like);
    return shoal_tensor_n_dims(moment) == n_dims &&
           (n_dims == 0 || memcmp(shoal_tensor_shape(moment), shoal_tensor_shape(like),
                                  (size_t)n_dims * sizeof(int64_t)) == 0);
}

static shoal_status check_moment(const char *call, const shoal_nn_optimizer *optimizer,
                                 const struct nn_parameter *parameter, const char *name,
                                 const shoal_tensor *moment)
{
    shoal_dtype real = nn_real(parameter->dtype);
    if (!moment) {
        return SHOAL_OK;
    }
    if (optimizer->rule == NN_RULE_SGD) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s is not NULL, but SGD has no moments", call, name);
    }
    if (shoal_tensor_dtype(moment) == real && has_shape(parameter, moment)) {
        return SHOAL_OK;
    }
    if (!parameter->tensor) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s is %s of shape %s, but the state has %zu elements of %s",
                          call, name, shoal_dtype_name(shoal_tensor_dtype(moment)),
                          nn_shape_text(moment).text, parameter->count, shoal_dtype_name(real));
    }
    return shoal_fail(SHOAL_ERR_INVALID, "%s: %s is %s of shape %s, but the state is %s of shape %s", call,
                      name, shoal_dtype_name(shoal_tensor_dtype(moment)), nn_shape_text(moment).text,
                      shoal_dtype_name(real), nn_shape_text(parameter->tensor).text);
}

/* Copies values, which may be on another device, to a moment. */
static shoal_status copy_to(const struct nn_parameter *parameter, shoal_tensor *moment, shoal_tensor *from)
{
    NN_TRY(shoal_scope_begin());
    shoal_status status = shoal_scope_set_grad(false);
    shoal_tensor *flat = shoal_reshape(from, shoal_tensor_shape(moment), shoal_tensor_n_dims(moment));
    (void)shoal_copy_(moment, shoal_to_device(flat, device_of(parameter)));
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

/* A copy of the values in a moment of our own, referenced. NULL for NULL, and when it fails. */
static shoal_status copy_moment(const struct nn_parameter *parameter, shoal_tensor *from,
                                shoal_tensor **moment_out)
{
    *moment_out = NULL;
    if (!from) {
        return SHOAL_OK;
    }
    shoal_tensor *moment;
    NN_TRY(make_moment(parameter, &moment));
    shoal_status status = copy_to(parameter, moment, from);
    if (status != SHOAL_OK) {
        shoal_tensor_unref(moment);
        return status;
    }
    *moment_out = moment;
    return SHOAL_OK;
}

/* A moment that is about to get values. */
struct arrival {
    shoal_tensor *values; /* a copy, referenced; NULL means zeros */
    bool is_apart; /* on another device than the CPU, where `values` are copied to a moment that is there */
    void *to;      /* on the CPU: memory of the moment that there is; NULL if there is none */
    const void *from;
};

/* What can fail. */
static shoal_status prepare_arrival(const struct nn_parameter *parameter, shoal_tensor *moment,
                                    shoal_tensor *given, struct arrival *arrival)
{
    arrival->is_apart = device_of(parameter) != SHOAL_CPU;
    if (arrival->is_apart && !given && moment) {
        return make_moment(parameter, &arrival->values);
    }
    NN_TRY(copy_moment(parameter, given, &arrival->values));
    if (!moment || arrival->is_apart) {
        return SHOAL_OK;
    }
    arrival->from = arrival->values ? shoal_data(arrival->values) : NULL;
    arrival->to = shoal_mutable_data(moment);
    /* If one is NULL its text is there already. */
    return arrival->to && (arrival->from || !arrival->values) ? SHOAL_OK : SHOAL_ERR_STATE;
}

/* Others may hold the tensor of a moment: it stays, and its values change. Cannot fail on the CPU. */
static shoal_status finish_arrival(const struct nn_parameter *parameter, shoal_tensor **moment,
                                   struct arrival *arrival)
{
    size_t bytes = parameter->count * shoal_dtype_bytes(nn_real(parameter->dtype));
    if (!*moment) {
        *moment = arrival->values;
        arrival->values = NULL;
    } else if (arrival->is_apart) {
        return copy_to(parameter, *moment, arrival->values);
    } else if (arrival->from) {
        memcpy(arrival->to, arrival->from, bytes);
    } else {
        memset(arrival->to, 0, bytes);
    }
    return SHOAL_OK;
}

static shoal_status read_state(const char *call, const shoal_nn_optimizer *optimizer, size_t index,
                               const shoal_nn_optimizer_state *given, shoal_nn_optimizer_state *state)
{
    NN_TRY(nn_check_index(call, optimizer, index));
    NN_TRY(nn_struct_read(call, "state", given, state, sizeof(*state)));
    if (state->n_updates < 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: n_updates: %lld is negative", call,
                          (long long)state->n_updates);
    }
    const struct nn_parameter *parameter = &optimizer->parameters[index];
    NN_TRY(check_moment(call, optimizer, parameter, "first_moment", state->first_moment));
    return check_moment(call, optimizer, parameter, "second_moment", state->second_moment);
}

shoal_status shoal_nn_optimizer_set_state(shoal_nn_optimizer *optimizer, size_t index,
                                          const shoal_nn_optimizer_state *given)
{
    shoal_nn_optimizer_state state = {.struct_size = sizeof(state)};
    NN_TRY(read_state("nn_optimizer_set_state", optimizer, index, given, &state));
    struct nn_parameter *parameter = &optimizer->parameters[index];
    shoal_tensor *const moments[NN_N_MOMENTS] = {state.first_moment, state.second_moment};
    struct arrival arrivals[NN_N_MOMENTS] = {{0}};
    shoal_status status = SHOAL_OK;
    for (int i = 0; status == SHOAL_OK && i < NN_N_MOMENTS; i++) {
        status = prepare_arrival(parameter, parameter->moments[i], moments[i], &arrivals[i]);
    }
    for (int i = 0; i < NN_N_MOMENTS; i++) {
        if (status == SHOAL_OK) {
            status = finish_arrival(parameter, &parameter->moments[i], &arrivals[i]);
        }
        shoal_tensor_unref(arrivals[i].values);
    }
    if (status == SHOAL_OK) {
        parameter->n_updates = state.n_updates;
    }
    return status;
}
