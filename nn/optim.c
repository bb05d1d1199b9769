/* SPDX-License-Identifier: MIT */
/*
 * Optimizers. A step has two passes: the first finds data and gradients, waits for them and makes missing state, and
 * may fail; the second computes, and can not.
 */
#include "shoal_nn/optim.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "loops.h"
#include "ops.h"
#include "shoal/autograd.h"
#include "shoal/fp_mode.h"
#include "shoal/log.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "try.h"
#include "values.h"

/* Elements of 16 bits are computed in pieces of so many, on the stack. */
#define PIECE 512

enum rule {
    RULE_SGD,
    RULE_ADAMW
};

struct parameter {
    shoal_tensor *tensor; /* one reference; NULL: raw memory */
    size_t count;
    shoal_dtype dtype;
    int64_t n_updates;
    shoal_tensor *moments[2]; /* one reference each; NULL: none yet */

    /* Of the step that is running. */
    shoal_nn_shard now;     /* now.gradient NULL: passed over */
    void *gradient_scratch; /* a gradient whose strides had to be undone */
    void *moment_data[2];
};

struct shoal_nn_optimizer {
    enum rule rule;
    bool is_raw;
    bool has_warned;                /* the last step found no gradient */
    shoal_nn_adamw_options options; /* SGD: lr only */
    size_t n_parameters;
    struct parameter parameters[];
};

/* Arguments -------------------------------------------------------------------------------------------- */

static shoal_status check_size(const char *call, const char *name, size_t given, size_t wanted)
{
    if (given != wanted) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s: struct_size %zu is not %zu", call, name, given, wanted);
    }
    return SHOAL_OK;
}

static shoal_status check_number(const char *call, const char *name, double value, double below)
{
    if (!(value >= 0) || !(value < below)) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s: %g is not at least 0 and below %g", call, name, value,
                          below);
    }
    return SHOAL_OK;
}

/* A field of options that were filled with zeros and then only partly is 0: a step without betas or eps. */
static shoal_status check_not_zero(const char *call, const char *name, double value, double by_default)
{
    if (value == 0) {
        return shoal_fail(
            SHOAL_ERR_INVALID,
            "%s: %s is 0, perhaps forgotten; begin with SHOAL_NN_ADAMW_OPTIONS_INIT (%g), or set "
            "allows_zeros",
            call, name, by_default);
    }
    return SHOAL_OK;
}

static shoal_status check_adamw_options(const char *call, const shoal_nn_adamw_options *options)
{
    NN_TRY(check_size(call, "options", options->struct_size, sizeof(*options)));
    NN_TRY(check_number(call, "lr", options->lr, (double)INFINITY));
    NN_TRY(check_number(call, "beta1", options->beta1, 1));
    NN_TRY(check_number(call, "beta2", options->beta2, 1));
    NN_TRY(check_number(call, "eps", options->eps, (double)INFINITY));
    if (!options->allows_zeros) {
        const shoal_nn_adamw_options defaults = SHOAL_NN_ADAMW_OPTIONS_INIT;
        NN_TRY(check_not_zero(call, "beta1", options->beta1, defaults.beta1));
        NN_TRY(check_not_zero(call, "beta2", options->beta2, defaults.beta2));
        NN_TRY(check_not_zero(call, "eps", options->eps, defaults.eps));
    }
    return check_number(call, "weight_decay", options->weight_decay, (double)INFINITY);
}

static shoal_status check_parameter_dtype(const char *call, size_t index, shoal_dtype dtype)
{
    if (!shoal_dtype_is_floating(dtype)) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "%s: parameter %zu: %s is not one of f64, f32, f16, bf16",
                          call, index, shoal_dtype_name(dtype));
    }
    return SHOAL_OK;
}

static shoal_status check_tensor(const char *call, size_t index, const shoal_tensor *tensor)
{
    if (!tensor) {
        NN_TRY(shoal_scope_error()); /* the NULL is what a call that failed gave */
        return shoal_fail(SHOAL_ERR_INVALID, "%s: parameter %zu is NULL", call, index);
    }
    if ((int)shoal_tensor_dtype(tensor) == 0) { /* it has ended, and SHOAL_DEBUG_HANDLES knows of it */
        return shoal_fail(SHOAL_ERR_STATE, "%s: parameter %zu: %s", call, index, shoal_error_text());
    }
    NN_TRY(check_parameter_dtype(call, index, shoal_tensor_dtype(tensor)));
    if (!shoal_is_leaf(tensor)) {
        return shoal_fail(
            SHOAL_ERR_INVALID,
            "%s: parameter %zu (%s), of shape %s, is the result of an operation and keeps no gradient; "
            "give the leaf that it was computed from",
            call, index, shoal_tensor_name(tensor), nn_shape_text(tensor).text);
    }
    if (!shoal_tensor_is_contiguous(tensor)) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "%s: parameter %zu (%s), of shape %s, is not contiguous",
                          call, index, shoal_tensor_name(tensor), nn_shape_text(tensor).text);
    }
    return SHOAL_OK;
}

static shoal_status check_index(const char *call, const shoal_nn_optimizer *optimizer, size_t index)
{
    if (!optimizer) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: optimizer is NULL", call);
    }
    if (index >= optimizer->n_parameters) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: index %zu, but there are %zu parameters", call, index,
                          optimizer->n_parameters);
    }
    return SHOAL_OK;
}

/* Making ----------------------------------------------------------------------------------------------- */

static shoal_status allocate(const char *call, size_t n_parameters, shoal_nn_optimizer **optimizer_out)
{
    size_t bytes;
    *optimizer_out = NULL;
    if (!__builtin_mul_overflow(n_parameters, sizeof(struct parameter), &bytes) &&
        !__builtin_add_overflow(bytes, sizeof(shoal_nn_optimizer), &bytes)) {
        *optimizer_out = calloc(1, bytes);
    }
    if (!*optimizer_out) {
        shoal_status failed =
            shoal_fail(SHOAL_ERR_NO_MEMORY, "%s: an optimizer of %zu parameters", call, n_parameters);
        return failed != SHOAL_OK ? failed : SHOAL_ERR_INTERNAL; /* it never is; an analyzer can not know */
    }
    (*optimizer_out)->n_parameters = n_parameters;
    return SHOAL_OK;
}

static shoal_status check_list(const char *call, const char *name, const void *list, size_t count,
                               shoal_nn_optimizer *const *optimizer_out)
{
    if (!optimizer_out || (!list && count > 0)) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s is NULL", call, optimizer_out ? name : "optimizer_out");
    }
    return count > 0 ? SHOAL_OK
                     : shoal_fail(SHOAL_ERR_INVALID, "%s: no %s: there is nothing to optimize", call, name);
}

static shoal_status create(const char *call, enum rule rule, shoal_tensor *const *tensors, size_t n_tensors,
                           const shoal_nn_adamw_options *options, shoal_nn_optimizer **optimizer_out)
{
    NN_TRY(check_list(call, "parameters", tensors, n_tensors, optimizer_out));
    NN_TRY(check_adamw_options(call, options));
    for (size_t i = 0; i < n_tensors; i++) {
        NN_TRY(check_tensor(call, i, tensors[i]));
    }
    shoal_nn_optimizer *optimizer;
    NN_TRY(allocate(call, n_tensors, &optimizer));
    optimizer->rule = rule;
    optimizer->options = *options;
    for (size_t i = 0; i < n_tensors; i++) {
        optimizer->parameters[i].tensor = shoal_tensor_ref(tensors[i]);
        optimizer->parameters[i].count = (size_t)shoal_tensor_count(tensors[i]);
        optimizer->parameters[i].dtype = shoal_tensor_dtype(tensors[i]);
    }
    *optimizer_out = optimizer;
    return SHOAL_OK;
}

static shoal_status create_raw(const char *call, enum rule rule, const shoal_nn_shard *shards,
                               size_t n_shards, const shoal_nn_adamw_options *options,
                               shoal_nn_optimizer **optimizer_out)
{
    NN_TRY(check_list(call, "shards", shards, n_shards, optimizer_out));
    NN_TRY(check_adamw_options(call, options));
    for (size_t i = 0; i < n_shards; i++) {
        NN_TRY(check_parameter_dtype(call, i, shards[i].dtype));
    }
    shoal_nn_optimizer *optimizer;
    NN_TRY(allocate(call, n_shards, &optimizer));
    optimizer->rule = rule;
    optimizer->is_raw = true;
    optimizer->options = *options;
    for (size_t i = 0; i < n_shards; i++) {
        optimizer->parameters[i].count = shards[i].count;
        optimizer->parameters[i].dtype = shards[i].dtype;
    }
    *optimizer_out = optimizer;
    return SHOAL_OK;
}

/* SGD's options as those of AdamW, of which it uses the rate. */
static shoal_status widen(const char *call, const shoal_nn_sgd_options *options,
                          shoal_nn_adamw_options *wide_out)
{
    *wide_out = (shoal_nn_adamw_options)SHOAL_NN_ADAMW_OPTIONS_INIT;
    if (options) {
        NN_TRY(check_size(call, "options", options->struct_size, sizeof(*options)));
        wide_out->lr = options->lr;
    }
    return SHOAL_OK;
}

shoal_status shoal_nn_sgd_create(shoal_tensor *const *parameters, size_t n_parameters,
                                 const shoal_nn_sgd_options *options, shoal_nn_optimizer **optimizer_out)
{
    shoal_nn_adamw_options wide;
    NN_TRY(widen("nn_sgd_create", options, &wide));
    return create("nn_sgd_create", RULE_SGD, parameters, n_parameters, &wide, optimizer_out);
}

shoal_status shoal_nn_sgd_create_raw(const shoal_nn_shard *shards, size_t n_shards,
                                     const shoal_nn_sgd_options *options, shoal_nn_optimizer **optimizer_out)
{
    shoal_nn_adamw_options wide;
    NN_TRY(widen("nn_sgd_create_raw", options, &wide));
    return create_raw("nn_sgd_create_raw", RULE_SGD, shards, n_shards, &wide, optimizer_out);
}

shoal_status shoal_nn_adamw_create(shoal_tensor *const *parameters, size_t n_parameters,
                                   const shoal_nn_adamw_options *options, shoal_nn_optimizer **optimizer_out)
{
    const shoal_nn_adamw_options defaults = SHOAL_NN_ADAMW_OPTIONS_INIT;
    return create("nn_adamw_create", RULE_ADAMW, parameters, n_parameters, options ? options : &defaults,
                  optimizer_out);
}

shoal_status shoal_nn_adamw_create_raw(const shoal_nn_shard *shards, size_t n_shards,
                                       const shoal_nn_adamw_options *options,
                                       shoal_nn_optimizer **optimizer_out)
{
    const shoal_nn_adamw_options defaults = SHOAL_NN_ADAMW_OPTIONS_INIT;
    return create_raw("nn_adamw_create_raw", RULE_ADAMW, shards, n_shards, options ? options : &defaults,
                      optimizer_out);
}

static void drop_moments(struct parameter *parameter)
{
    for (int i = 0; i < 2; i++) {
        shoal_tensor_unref(parameter->moments[i]);
        parameter->moments[i] = NULL;
    }
}

void shoal_nn_optimizer_free(shoal_nn_optimizer *optimizer)
{
    for (size_t i = 0; optimizer && i < optimizer->n_parameters; i++) {
        drop_moments(&optimizer->parameters[i]);
        shoal_tensor_unref(optimizer->parameters[i].tensor);
    }
    free(optimizer);
}

/* Stepping: what can fail ------------------------------------------------------------------------------ */

/* Zeros like the parameter, referenced. */
static shoal_status make_moment(const struct parameter *parameter, shoal_tensor **moment_out)
{
    const int64_t count = (int64_t)parameter->count;
    const shoal_tensor *like = parameter->tensor;
    NN_TRY(shoal_scope_begin());
    shoal_tensor *zeros = shoal_zeros(like ? shoal_tensor_shape(like) : &count,
                                      like ? shoal_tensor_n_dims(like) : 1, nn_real(parameter->dtype));
    *moment_out = shoal_tensor_ref(zeros);
    return shoal_scope_end();
}

static shoal_status prepare_moments(struct parameter *parameter)
{
    for (int i = 0; i < 2; i++) {
        if (!parameter->moments[i]) {
            NN_TRY(make_moment(parameter, &parameter->moments[i]));
        }
        parameter->moment_data[i] = shoal_mutable_data(parameter->moments[i]);
        if (!parameter->moment_data[i]) {
            return SHOAL_ERR_STATE; /* the text is there already */
        }
    }
    return SHOAL_OK;
}

/* Where the gradient of a tensor lies, contiguous. */
static shoal_status find_gradient(struct parameter *parameter, const shoal_tensor *gradient)
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

/* Fills parameter->now from its tensor; without a gradient it is passed over. */
static shoal_status prepare_tensor(struct parameter *parameter)
{
    shoal_tensor *gradient = shoal_grad(parameter->tensor);
    parameter->now = (shoal_nn_shard){.count = parameter->count, .dtype = parameter->dtype};
    if (!gradient) {
        return SHOAL_OK;
    }
    NN_TRY(find_gradient(parameter, gradient));
    parameter->now.data = shoal_mutable_data(parameter->tensor);
    return parameter->now.data ? SHOAL_OK : SHOAL_ERR_STATE; /* the text is there already */
}

static shoal_status prepare_shard(struct parameter *parameter, size_t index, const shoal_nn_shard *shard)
{
    static const char call[] = "nn_optimizer_step_raw";
    if (shard->count != parameter->count || shard->dtype != parameter->dtype) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "%s: shard %zu has %zu elements of %s, but was made with %zu of %s", call, index,
                          shard->count, shoal_dtype_name(shard->dtype), parameter->count,
                          shoal_dtype_name(parameter->dtype));
    }
    if (shard->gradient && shard->count > 0) {
        if (!shard->data) {
            return shoal_fail(SHOAL_ERR_INVALID, "%s: shard %zu: data is NULL with %zu elements", call, index,
                              shard->count);
        }
        NN_TRY(check_parameter_dtype(call, index, shard->gradient_dtype));
    }
    parameter->now = *shard;
    return SHOAL_OK;
}

static void end_step(shoal_nn_optimizer *optimizer)
{
    for (size_t i = 0; i < optimizer->n_parameters; i++) {
        struct parameter *parameter = &optimizer->parameters[i];
        free(parameter->gradient_scratch);
        parameter->gradient_scratch = NULL;
        parameter->now = (shoal_nn_shard){.data = NULL};
    }
}

/* Stepping: what can not, in the default floating-point mode --------------------------------------------- */

static struct nn_adamw_factors make_factors(const shoal_nn_adamw_options *options, int64_t n_updates)
{
    double t = (double)n_updates;
    return (struct nn_adamw_factors){.decay = options->lr * options->weight_decay,
                                     .beta1 = options->beta1,
                                     .one_minus_beta1 = 1 - options->beta1,
                                     .beta2 = options->beta2,
                                     .one_minus_beta2 = 1 - options->beta2,
                                     .step = options->lr / (1 - pow(options->beta1, t)),
                                     .root = sqrt(1 - pow(options->beta2, t)),
                                     .eps = options->eps};
}

/* `first` is where the piece begins within the parameter. */
static void apply(const shoal_nn_optimizer *optimizer, const struct parameter *parameter,
                  const struct nn_adamw_factors *factors, size_t first, size_t count, const void *gradient,
                  void *data)
{
    shoal_dtype real = nn_real(parameter->dtype);
    size_t offset = first * shoal_dtype_bytes(real);
    if (optimizer->rule == RULE_SGD) {
        nn_loops_of(real)->sgd(count, optimizer->options.lr, gradient, data);
        return;
    }
    nn_loops_of(real)->adamw(count, factors, gradient, data, (char *)parameter->moment_data[0] + offset,
                             (char *)parameter->moment_data[1] + offset);
}

/* Pieces through buffers, where data or gradient are not of the type that is computed in. */
static void apply_pieces(const shoal_nn_optimizer *optimizer, const struct parameter *parameter,
                         const struct nn_adamw_factors *factors)
{
    const shoal_nn_shard *now = &parameter->now;
    shoal_dtype real = nn_real(parameter->dtype);
    double gradient[PIECE];
    double data[PIECE];
    for (size_t first = 0; first < now->count; first += PIECE) {
        size_t count = now->count - first < PIECE ? now->count - first : PIECE;
        char *place = (char *)now->data + first * shoal_dtype_bytes(now->dtype);
        nn_convert(count, (const char *)now->gradient + first * shoal_dtype_bytes(now->gradient_dtype),
                   now->gradient_dtype, gradient, real);
        nn_convert(count, place, now->dtype, data, real);
        apply(optimizer, parameter, factors, first, count, gradient, data);
        nn_convert(count, data, real, place, now->dtype);
    }
}

static void update(const shoal_nn_optimizer *optimizer, struct parameter *parameter)
{
    const shoal_nn_shard *now = &parameter->now;
    shoal_dtype real = nn_real(parameter->dtype);
    if (!now->gradient) {
        return;
    }
    parameter->n_updates++;
    struct nn_adamw_factors factors = make_factors(&optimizer->options, parameter->n_updates);
    if (now->dtype == real && now->gradient_dtype == real) {
        apply(optimizer, parameter, &factors, 0, now->count, now->gradient, now->data);
    } else {
        apply_pieces(optimizer, parameter, &factors);
    }
}

/* After a step over parameters first .. first + count - 1: a forgotten backward, or the wrong parameters. */
static void warn_without_gradients(shoal_nn_optimizer *optimizer, size_t first, size_t count)
{
    size_t n_filled = 0;
    bool has_gradient = false;
    for (size_t i = first; i < first + count; i++) {
        n_filled += optimizer->parameters[i].count > 0;
        has_gradient = has_gradient || optimizer->parameters[i].now.gradient;
    }
    if (!has_gradient && n_filled > 0 && !optimizer->has_warned) {
        shoal_log_write(SHOAL_LOG_WARN,
                        "optimizer step: none of %zu parameters has a gradient, nothing is updated",
                        n_filled);
    }
    optimizer->has_warned = !has_gradient && n_filled > 0;
}

/* Parameters first .. first + count - 1; shards NULL: tensors. */
static shoal_status step(shoal_nn_optimizer *optimizer, size_t first, size_t count,
                         const shoal_nn_shard *shards)
{
    shoal_status status = SHOAL_OK;
    for (size_t i = first; status == SHOAL_OK && i < first + count; i++) {
        struct parameter *parameter = &optimizer->parameters[i];
        status = shards ? prepare_shard(parameter, i, &shards[i]) : prepare_tensor(parameter);
        if (status == SHOAL_OK && parameter->now.gradient && optimizer->rule == RULE_ADAMW) {
            status = prepare_moments(parameter);
        }
    }
    uint64_t mode = shoal_fp_mode_enter();
    for (size_t i = first; status == SHOAL_OK && i < first + count; i++) {
        update(optimizer, &optimizer->parameters[i]);
    }
    shoal_fp_mode_leave(mode);
    if (status == SHOAL_OK) {
        warn_without_gradients(optimizer, first, count);
    }
    end_step(optimizer);
    return status;
}

static shoal_status check_kind(const char *call, const shoal_nn_optimizer *optimizer, bool is_raw)
{
    if (!optimizer) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: optimizer is NULL", call);
    }
    if (optimizer->is_raw != is_raw) {
        return shoal_fail(SHOAL_ERR_STATE, "%s: the optimizer was made over %s", call,
                          is_raw ? "tensors" : "raw memory");
    }
    return SHOAL_OK;
}

shoal_status shoal_nn_optimizer_step(shoal_nn_optimizer *optimizer)
{
    NN_TRY(check_kind("nn_optimizer_step", optimizer, /*is_raw=*/false));
    return step(optimizer, 0, optimizer->n_parameters, NULL);
}

shoal_status shoal_nn_optimizer_step_one(shoal_nn_optimizer *optimizer, size_t index)
{
    NN_TRY(check_kind("nn_optimizer_step_one", optimizer, /*is_raw=*/false));
    NN_TRY(check_index("nn_optimizer_step_one", optimizer, index));
    return step(optimizer, index, 1, NULL);
}

shoal_status shoal_nn_optimizer_step_raw(shoal_nn_optimizer *optimizer, const shoal_nn_shard *shards,
                                         size_t n_shards)
{
    NN_TRY(check_kind("nn_optimizer_step_raw", optimizer, /*is_raw=*/true));
    if (n_shards != optimizer->n_parameters || !shards) {
        return shoal_fail(SHOAL_ERR_INVALID, "nn_optimizer_step_raw: %zu shards%s, but it was made with %zu",
                          n_shards, shards ? "" : " at NULL", optimizer->n_parameters);
    }
    return step(optimizer, 0, n_shards, shards);
}

/* Around steps ----------------------------------------------------------------------------------------- */

shoal_status shoal_nn_optimizer_zero_grad(shoal_nn_optimizer *optimizer)
{
    NN_TRY(check_kind("nn_optimizer_zero_grad", optimizer, /*is_raw=*/false));
    for (size_t i = 0; i < optimizer->n_parameters; i++) {
        if (shoal_grad(optimizer->parameters[i].tensor)) {
            NN_TRY(shoal_set_grad(optimizer->parameters[i].tensor, NULL));
        }
    }
    return SHOAL_OK;
}

double shoal_nn_optimizer_lr(const shoal_nn_optimizer *optimizer)
{
    return optimizer ? optimizer->options.lr : 0;
}

shoal_status shoal_nn_optimizer_set_lr(shoal_nn_optimizer *optimizer, double lr)
{
    if (!optimizer) {
        return shoal_fail(SHOAL_ERR_INVALID, "nn_optimizer_set_lr: optimizer is NULL");
    }
    NN_TRY(check_number("nn_optimizer_set_lr", "lr", lr, (double)INFINITY));
    optimizer->options.lr = lr;
    return SHOAL_OK;
}

shoal_status shoal_nn_optimizer_get_state(const shoal_nn_optimizer *optimizer, size_t index,
                                          shoal_nn_optimizer_state *state_out)
{
    static const char call[] = "nn_optimizer_get_state";
    NN_TRY(check_index(call, optimizer, index));
    if (!state_out) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: state_out is NULL", call);
    }
    NN_TRY(check_size(call, "state_out", state_out->struct_size, sizeof(*state_out)));
    const struct parameter *parameter = &optimizer->parameters[index];
    state_out->n_updates = parameter->n_updates;
    state_out->first_moment = parameter->moments[0];
    state_out->second_moment = parameter->moments[1];
    return SHOAL_OK;
}

static shoal_status check_moment(const char *call, const struct parameter *parameter, const char *name,
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
static shoal_status copy_moment(const struct parameter *parameter, shoal_tensor *from,
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
    NN_TRY(check_index(call, optimizer, index));
    if (!state) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: state is NULL", call);
    }
    NN_TRY(check_size(call, "state", state->struct_size, sizeof(*state)));
    struct parameter *parameter = &optimizer->parameters[index];
    if (state->n_updates < 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: n_updates: %lld is negative", call,
                          (long long)state->n_updates);
    }
    NN_TRY(check_moment(call, parameter, "first_moment", state->first_moment));
    NN_TRY(check_moment(call, parameter, "second_moment", state->second_moment));
    shoal_tensor *moments[2];
    NN_TRY(copy_moment(parameter, state->first_moment, &moments[0]));
    shoal_status status = copy_moment(parameter, state->second_moment, &moments[1]);
    if (status != SHOAL_OK) {
        shoal_tensor_unref(moments[0]);
        return status;
    }
    drop_moments(parameter);
    parameter->moments[0] = moments[0];
    parameter->moments[1] = moments[1];
    parameter->n_updates = state->n_updates;
    return SHOAL_OK;
}
