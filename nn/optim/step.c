/* SPDX-License-Identifier: MIT */
/*
 * Steps of optimizers. A step has two passes. The first finds data and gradients, waits for them and creates missing
 * state; it may fail. The second computes and cannot fail. Of tensors on another device the second is one call for all
 * of them (shoal/update.h), which checks before it changes anything.
 */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "math/loops.h"
#include "optim/optim.h"
#include "math/pool.h"
#include "shoal/autograd.h"
#include "shoal/fp_mode.h"
#include "shoal/fully_shard.h"
#include "shoal/log.h"
#include "shoal/op.h"
#include "shoal/trace.h"
#include "shoal/update.h"
#include "common/try.h"
#include "ops/values.h"

/* Elements of 16 bits are computed in pieces of so many, on the stack. */
#define PIECE 512

/* What the update of an element takes, in operations: AdamW moves seven floats. */
#define UPDATE_COST 4

/* What can fail ---------------------------------------------------------------------------------------- */

static shoal_status prepare_moments(struct nn_parameter *parameter)
{
    NN_TRY(nn_make_moments(parameter));
    if (parameter->gradient) {
        return SHOAL_OK;
    }
    for (int i = 0; i < NN_N_MOMENTS; i++) {
        parameter->moment_data[i] = shoal_mutable_data(parameter->moments[i]);
        if (!parameter->moment_data[i]) {
            return SHOAL_ERR_STATE; /* the text is there already */
        }
    }
    return SHOAL_OK;
}

/* Where the gradient of a tensor lies, contiguous. */
static shoal_status find_gradient(struct nn_parameter *parameter, const shoal_tensor *gradient)
{
    NN_TRY(shoal_wait(gradient));
    parameter->now.gradient = shoal_data(gradient);
    parameter->now.gradient_dtype = shoal_tensor_dtype(gradient);
    if (!parameter->now.gradient) {
        return SHOAL_ERR_STATE; /* the text is there already */
    }
    if (!shoal_tensor_is_contiguous(gradient)) {
        struct nn_values values;
        uint64_t mode = shoal_fp_mode_enter();
        shoal_status status = nn_load(NULL, gradient, &values);
        shoal_fp_mode_leave(mode);
        NN_TRY(status);
        parameter->gradient_scratch = values.scratch;
        parameter->now.gradient = values.data;
        parameter->now.gradient_dtype = nn_real(parameter->now.gradient_dtype);
    }
    return SHOAL_OK;
}

/* Whether the parameter's memory is that of another device. */
static bool is_apart(const struct nn_parameter *parameter)
{
    shoal_device device = parameter->tensor ? shoal_tensor_device(parameter->tensor) : SHOAL_CPU;
    return device != SHOAL_CPU && device != SHOAL_META;
}

static bool has_gradient(const struct nn_parameter *parameter)
{
    return parameter->now.gradient || parameter->gradient;
}

/* Fills parameter->now from its tensor; without a gradient it is passed over. */
static shoal_status prepare_tensor(struct nn_parameter *parameter)
{
    shoal_tensor *gradient = shoal_grad(parameter->tensor);
    parameter->now = (shoal_nn_shard){.count = parameter->count, .dtype = parameter->dtype};
    if (!gradient) {
        return SHOAL_OK;
    }
    if (is_apart(parameter)) {
        parameter->gradient = gradient;
        return SHOAL_OK;
    }
    NN_TRY(find_gradient(parameter, gradient));
    parameter->now.data = shoal_mutable_data(parameter->tensor);
    return parameter->now.data ? SHOAL_OK : SHOAL_ERR_STATE; /* the text is there already */
}

shoal_status nn_check_shard(const char *call, const shoal_nn_optimizer *optimizer, size_t index,
                            const shoal_nn_shard *shard)
{
    const struct nn_parameter *parameter = &optimizer->parameters[index];
    if (shard->count != parameter->count || shard->dtype != parameter->dtype) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "%s: shard %zu has %zu elements of %s, but was made with %zu of %s", call, index,
                          shard->count, shoal_dtype_name(shard->dtype), parameter->count,
                          shoal_dtype_name(parameter->dtype));
    }
    if (!shard->gradient || shard->count == 0) {
        return SHOAL_OK;
    }
    if (!shard->data) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: shard %zu: data is NULL with %zu elements", call, index,
                          shard->count);
    }
    if (!shoal_dtype_is_floating(shard->gradient_dtype)) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED,
                          "%s: shard %zu: a gradient of %s, not of f64, f32, f16, bf16", call, index,
                          shoal_dtype_name(shard->gradient_dtype));
    }
    return SHOAL_OK;
}

static void end_step(shoal_nn_optimizer *optimizer, size_t first, size_t count)
{
    for (size_t i = first; i < first + count; i++) {
        struct nn_parameter *parameter = &optimizer->parameters[i];
        free(parameter->gradient_scratch);
        parameter->gradient_scratch = NULL;
        parameter->now = (shoal_nn_shard){.data = NULL};
        parameter->gradient = NULL;
    }
}

/* What cannot, in the default floating-point mode -------------------------------------------------------- */

/* What one parameter is updated with. */
struct rates {
    double lr; /* of SGD */
    struct nn_adamw_factors adamw;
};

/* Of its next update. */
static struct rates make_rates(const shoal_nn_optimizer *optimizer, const struct nn_parameter *parameter)
{
    const shoal_nn_adamw_options *options = &optimizer->options;
    double lr = options->lr;
    double weight_decay = options->weight_decay;
    double t = (double)(parameter->n_updates + 1);
    if (parameter->group >= 0) {
        const shoal_nn_param_group *row = &optimizer->groups[parameter->group];
        lr *= row->lr_factor;
        weight_decay = row->weight_decay < 0 ? weight_decay : row->weight_decay;
    }
    return (struct rates){.lr = lr,
                          .adamw = {.decay = lr * weight_decay,
                                    .beta1 = options->beta1,
                                    .one_minus_beta1 = 1 - options->beta1,
                                    .beta2 = options->beta2,
                                    .one_minus_beta2 = 1 - options->beta2,
                                    .step = lr / (1 - pow(options->beta1, t)),
                                    .root = sqrt(1 - pow(options->beta2, t)),
                                    .eps = options->eps}};
}

/* A parameter and what it is updated with. */
struct update {
    const shoal_nn_optimizer *optimizer;
    const struct nn_parameter *parameter;
    struct rates rates;
};

/* `first` is where the piece begins within the parameter. */
static void apply(const struct update *update, size_t first, size_t count, const void *gradient, void *data)
{
    const struct nn_parameter *parameter = update->parameter;
    shoal_dtype real = nn_real(parameter->dtype);
    size_t offset = first * shoal_dtype_bytes(real);
    if (update->optimizer->rule == NN_RULE_SGD) {
        nn_loops_of(real)->sgd(count, update->rates.lr, gradient, data);
        return;
    }
    nn_loops_of(real)->adamw(count, &update->rates.adamw, gradient, data,
                             (char *)parameter->moment_data[0] + offset,
                             (char *)parameter->moment_data[1] + offset);
}

/* Elements in place. */
static void apply_range(void *context, size_t first, size_t end)
{
    const struct update *update = context;
    const shoal_nn_shard *now = &update->parameter->now;
    size_t offset = first * shoal_dtype_bytes(now->dtype);
    apply(update, first, end - first, (const char *)now->gradient + offset, (char *)now->data + offset);
}

/* Pieces through buffers, where data or gradient are not of the type that is computed in. */
static void apply_pieces(void *context, size_t begin, size_t end)
{
    const struct update *update = context;
    const shoal_nn_shard *now = &update->parameter->now;
    shoal_dtype real = nn_real(now->dtype);
    double gradient[PIECE];
    double data[PIECE];
    for (size_t first = begin; first < end; first += PIECE) {
        size_t count = end - first < PIECE ? end - first : PIECE;
        char *place = (char *)now->data + first * shoal_dtype_bytes(now->dtype);
        nn_convert(count, (const char *)now->gradient + first * shoal_dtype_bytes(now->gradient_dtype),
                   now->gradient_dtype, gradient, real);
        nn_convert(count, place, now->dtype, data, real);
        apply(update, first, count, gradient, data);
        nn_convert(count, data, real, place, now->dtype);
    }
}

static void update_parameter(const shoal_nn_optimizer *optimizer, struct nn_parameter *parameter)
{
    const shoal_nn_shard *now = &parameter->now;
    shoal_dtype real = nn_real(parameter->dtype);
    if (!now->gradient) {
        return;
    }
    struct update update = {
        .optimizer = optimizer, .parameter = parameter, .rates = make_rates(optimizer, parameter)};
    parameter->n_updates++;
    bool is_in_place = now->dtype == real && now->gradient_dtype == real;
    nn_parallel_ranges(now->count, UPDATE_COST, is_in_place ? apply_range : apply_pieces, &update);
}

/* After a step over parameters first .. first + count - 1: a forgotten backward pass, or the wrong parameters. */
static void warn_without_gradients(shoal_nn_optimizer *optimizer, size_t first, size_t count)
{
    size_t n_filled = 0;
    bool has_any = false;
    for (size_t i = first; i < first + count; i++) {
        n_filled += optimizer->parameters[i].count > 0;
        has_any = has_any || has_gradient(&optimizer->parameters[i]);
    }
    if (!has_any && n_filled > 0 && !optimizer->has_warned) {
        shoal_log_write(SHOAL_LOG_WARN,
                        "optimizer step: none of %zu parameters has a gradient, nothing is updated",
                        n_filled);
    }
    optimizer->has_warned = !has_any && n_filled > 0;
}

/* An optimizer that was made before its module was sharded would leave the model as it is, step after step. */
static shoal_status check_not_replaced(const shoal_nn_optimizer *optimizer, size_t first, size_t count)
{
    size_t n_filled = 0;
    for (size_t i = first; i < first + count; i++) {
        const struct nn_parameter *parameter = &optimizer->parameters[i];
        n_filled += parameter->count > 0;
        if (parameter->count > 0 && (has_gradient(parameter) || !shoal_is_replaced(parameter->tensor))) {
            return SHOAL_OK;
        }
    }
    return n_filled == 0 ? SHOAL_OK
                         : shoal_fail(SHOAL_ERR_STATE,
                                      "optimizer step: none of %zu parameters has a gradient, because "
                                      "shoal_fully_shard has replaced them all in their module; create the "
                                      "optimizer after sharding",
                                      n_filled);
}

/* Tensors on another device --------------------------------------------------------------------------------- */

static shoal_update describe(const shoal_nn_optimizer *optimizer, const struct nn_parameter *parameter)
{
    const struct rates rates = make_rates(optimizer, parameter);
    return (shoal_update){.parameter = parameter->tensor,
                          .gradient = parameter->gradient,
                          .first_moment = parameter->moments[0],
                          .second_moment = parameter->moments[1],
                          .lr = rates.lr,
                          .decay = rates.adamw.decay,
                          .beta1 = rates.adamw.beta1,
                          .one_minus_beta1 = rates.adamw.one_minus_beta1,
                          .beta2 = rates.adamw.beta2,
                          .one_minus_beta2 = rates.adamw.one_minus_beta2,
                          .step = rates.adamw.step,
                          .root = rates.adamw.root,
                          .eps = rates.adamw.eps};
}

/* Updates those among parameters first .. first + count - 1 that are on another device, if there are any. */
static shoal_status update_apart(shoal_nn_optimizer *optimizer, size_t first, size_t count)
{
    size_t n_updates = 0;
    for (size_t i = first; i < first + count; i++) {
        n_updates += optimizer->parameters[i].gradient != NULL;
    }
    if (n_updates == 0) {
        return SHOAL_OK;
    }
    shoal_update *updates = calloc(n_updates, sizeof(updates[0]));
    if (!updates) {
        return shoal_fail(SHOAL_ERR_NO_MEMORY, "optimizer step: no memory for a list of %zu updates",
                          n_updates);
    }
    size_t n_described = 0;
    uint64_t mode = shoal_fp_mode_enter();
    for (size_t i = first; i < first + count; i++) {
        if (optimizer->parameters[i].gradient) {
            updates[n_described++] = describe(optimizer, &optimizer->parameters[i]);
        }
    }
    shoal_fp_mode_leave(mode);
    shoal_status status = shoal_update_parameters(
        optimizer->rule == NN_RULE_SGD ? SHOAL_UPDATE_SGD : SHOAL_UPDATE_ADAMW, updates, n_updates);
    free(updates);
    for (size_t i = first; status == SHOAL_OK && i < first + count; i++) {
        optimizer->parameters[i].n_updates += optimizer->parameters[i].gradient != NULL;
    }
    return status;
}

/* Steps parameters first .. first + count - 1; if `shards` is NULL, they are tensors. */
static shoal_status step(shoal_nn_optimizer *optimizer, size_t first, size_t count,
                         const shoal_nn_shard *shards)
{
    shoal_status status = SHOAL_OK;
    shoal_trace_begin("optimizer");
    for (size_t i = first; status == SHOAL_OK && i < first + count; i++) {
        struct nn_parameter *parameter = &optimizer->parameters[i];
        if (shards) {
            status = nn_check_shard("nn_optimizer_step_raw", optimizer, i, &shards[i]);
            parameter->now = shards[i]; /* gone again below if it was wrong */
        } else {
            status = prepare_tensor(parameter);
        }
        if (status == SHOAL_OK && has_gradient(parameter) && optimizer->rule == NN_RULE_ADAMW) {
            status = prepare_moments(parameter);
        }
    }
    if (status == SHOAL_OK && !shards) {
        status = check_not_replaced(optimizer, first, count);
    }
    if (status == SHOAL_OK) {
        status = update_apart(optimizer, first, count);
    }
    uint64_t mode = shoal_fp_mode_enter();
    for (size_t i = first; status == SHOAL_OK && i < first + count; i++) {
        update_parameter(optimizer, &optimizer->parameters[i]);
    }
    shoal_fp_mode_leave(mode);
    if (status == SHOAL_OK) {
        warn_without_gradients(optimizer, first, count);
    }
    end_step(optimizer, first, count);
    shoal_trace_end();
    return status;
}

shoal_status shoal_nn_optimizer_step(shoal_nn_optimizer *optimizer)
{
    NN_TRY(nn_check_kind("nn_optimizer_step", optimizer, /*is_raw=*/false));
    return step(optimizer, 0, optimizer->n_parameters, NULL);
}

shoal_status shoal_nn_optimizer_step_one(shoal_nn_optimizer *optimizer, size_t index)
{
    NN_TRY(nn_check_kind("nn_optimizer_step_one", optimizer, /*is_raw=*/false));
    NN_TRY(nn_check_index("nn_optimizer_step_one", optimizer, index));
    return step(optimizer, index, 1, NULL);
}

shoal_status shoal_nn_optimizer_step_raw(shoal_nn_optimizer *optimizer, const shoal_nn_shard *shards,
                                         size_t n_shards)
{
    NN_TRY(nn_check_kind("nn_optimizer_step_raw", optimizer, /*is_raw=*/true));
    if (n_shards != optimizer->n_parameters || !shards) {
        return shoal_fail(SHOAL_ERR_INVALID, "nn_optimizer_step_raw: %zu shards%s, but it was made with %zu",
                          n_shards, shards ? "" : " at NULL", optimizer->n_parameters);
    }
    return step(optimizer, 0, n_shards, shards);
}
