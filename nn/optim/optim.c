/* SPDX-License-Identifier: MIT */
/* Optimizers: how they are made, what they are made from, and their rate. */
#include "optim/optim.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/check.h"
#include "common/struct_size.h"
#include "ops/ops.h"
#include "shoal/autograd.h"
#include "shoal/scope.h"
#include "common/try.h"

/* Arguments -------------------------------------------------------------------------------------------- */

/* A field of options that were filled with zeros and then only partly is 0, which would be a step without betas or
   eps. */
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

shoal_status nn_read_adamw_options(const char *call, const shoal_nn_adamw_options *given,
                                   shoal_nn_adamw_options *options)
{
    *options = (shoal_nn_adamw_options)SHOAL_NN_ADAMW_OPTIONS_INIT;
    if (given) {
        NN_TRY(nn_struct_read(call, "options", given, options, sizeof(*options)));
    }
    NN_TRY(nn_check_number(call, "lr", options->lr, (double)INFINITY));
    NN_TRY(nn_check_number(call, "beta1", options->beta1, 1));
    NN_TRY(nn_check_number(call, "beta2", options->beta2, 1));
    NN_TRY(nn_check_number(call, "eps", options->eps, (double)INFINITY));
    if (!options->allows_zeros) {
        const shoal_nn_adamw_options defaults = SHOAL_NN_ADAMW_OPTIONS_INIT;
        NN_TRY(check_not_zero(call, "beta1", options->beta1, defaults.beta1));
        NN_TRY(check_not_zero(call, "beta2", options->beta2, defaults.beta2));
        NN_TRY(check_not_zero(call, "eps", options->eps, defaults.eps));
    }
    return nn_check_number(call, "weight_decay", options->weight_decay, (double)INFINITY);
}

/* The number of a parameter as text. */
struct number {
    char text[24];
};

static struct number number_of(size_t index)
{
    struct number number;
    (void)snprintf(number.text, sizeof(number.text), "%zu", index);
    return number;
}

shoal_status nn_check_parameter_dtype(const char *call, const char *which, shoal_dtype dtype)
{
    if (!shoal_dtype_is_floating(dtype)) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "%s: parameter %.200s: %s is not one of f64, f32, f16, bf16",
                          call, which, shoal_dtype_name(dtype));
    }
    return SHOAL_OK;
}

shoal_status nn_check_tensor(const char *call, const char *which, const shoal_tensor *tensor)
{
    if (!tensor) {
        char what[224];
        (void)snprintf(what, sizeof(what), "parameter %.200s", which);
        return shoal_fail_null(call, what);
    }
    if ((int)shoal_tensor_dtype(tensor) == 0) { /* it has ended, and SHOAL_DEBUG_HANDLES knows of it */
        return shoal_fail(SHOAL_ERR_STATE, "%s: parameter %.200s: %s", call, which, shoal_error_text());
    }
    NN_TRY(nn_check_parameter_dtype(call, which, shoal_tensor_dtype(tensor)));
    if (!shoal_is_leaf(tensor)) {
        return shoal_fail(
            SHOAL_ERR_INVALID,
            "%s: parameter %.200s (%s), of shape %s, is the result of an operation and keeps no gradient; "
            "give the leaf that it was computed from",
            call, which, shoal_tensor_name(tensor), nn_shape_text(tensor).text);
    }
    if (!shoal_tensor_is_contiguous(tensor)) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "%s: parameter %.200s (%s), of shape %s, is not contiguous",
                          call, which, shoal_tensor_name(tensor), nn_shape_text(tensor).text);
    }
    return SHOAL_OK;
}

shoal_status nn_check_device(const char *call, const char *which, const shoal_tensor *tensor,
                             shoal_device *device)
{
    shoal_device own = shoal_tensor_device(tensor);
    if (own == SHOAL_META || own == *device) {
        return SHOAL_OK;
    }
    if (*device != SHOAL_META) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "%s: parameter %.200s is on device %s, but parameters before it are on %s", call,
                          which, shoal_device_name(own), shoal_device_name(*device));
    }
    *device = own;
    return SHOAL_OK;
}

shoal_status nn_check_index(const char *call, const shoal_nn_optimizer *optimizer, size_t index)
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

shoal_status nn_check_kind(const char *call, const shoal_nn_optimizer *optimizer, bool is_raw)
{
    if (!optimizer) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: optimizer is NULL", call);
    }
    if (optimizer->is_raw != is_raw) {
        return shoal_fail(SHOAL_ERR_STATE, "%s: the optimizer was created for %s", call,
                          is_raw ? "tensors" : "raw memory");
    }
    return SHOAL_OK;
}

/* Making ----------------------------------------------------------------------------------------------- */

shoal_status nn_optimizer_allocate(const char *call, enum nn_rule rule, const shoal_nn_adamw_options *options,
                                   size_t n_parameters, shoal_nn_optimizer **optimizer_out)
{
    size_t bytes;
    shoal_nn_optimizer *optimizer = NULL;
    if (!__builtin_mul_overflow(n_parameters, sizeof(struct nn_parameter), &bytes) &&
        !__builtin_add_overflow(bytes, sizeof(shoal_nn_optimizer), &bytes)) {
        optimizer = calloc(1, bytes);
    }
    *optimizer_out = optimizer;
    if (!optimizer) {
        shoal_status failed = shoal_fail(
            SHOAL_ERR_NO_MEMORY, "%s: no memory for an optimizer of %zu parameters", call, n_parameters);
        return failed != SHOAL_OK ? failed : SHOAL_ERR_INTERNAL; /* it never is; an analyzer cannot know */
    }
    atomic_init(&optimizer->n_references, 1);
    optimizer->rule = rule;
    optimizer->options = *options;
    optimizer->n_parameters = n_parameters;
    for (size_t i = 0; i < n_parameters; i++) {
        optimizer->parameters[i].group = -1;
    }
    return SHOAL_OK;
}

void nn_optimizer_ref(shoal_nn_optimizer *optimizer)
{
    atomic_fetch_add(&optimizer->n_references, 1);
}

void nn_parameter_set(struct nn_parameter *parameter, shoal_tensor *tensor)
{
    parameter->tensor = shoal_tensor_ref(tensor);
    parameter->count = (size_t)shoal_tensor_count(tensor);
    parameter->dtype = shoal_tensor_dtype(tensor);
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

static shoal_status create(const char *call, enum nn_rule rule, shoal_tensor *const *tensors,
                           size_t n_tensors, const shoal_nn_adamw_options *given,
                           shoal_nn_optimizer **optimizer_out)
{
    shoal_nn_adamw_options options;
    NN_TRY(check_list(call, "parameters", tensors, n_tensors, optimizer_out));
    NN_TRY(nn_read_adamw_options(call, given, &options));
    shoal_device device = SHOAL_META;
    for (size_t i = 0; i < n_tensors; i++) {
        NN_TRY(nn_check_tensor(call, number_of(i).text, tensors[i]));
        NN_TRY(nn_check_device(call, number_of(i).text, tensors[i], &device));
    }
    shoal_nn_optimizer *optimizer;
    NN_TRY(nn_optimizer_allocate(call, rule, &options, n_tensors, &optimizer));
    for (size_t i = 0; i < n_tensors; i++) {
        nn_parameter_set(&optimizer->parameters[i], tensors[i]);
    }
    *optimizer_out = optimizer;
    return SHOAL_OK;
}

static shoal_status create_raw(const char *call, enum nn_rule rule, const shoal_nn_shard *shards,
                               size_t n_shards, const shoal_nn_adamw_options *given,
                               shoal_nn_optimizer **optimizer_out)
{
    shoal_nn_adamw_options options;
    NN_TRY(check_list(call, "shards", shards, n_shards, optimizer_out));
    NN_TRY(nn_read_adamw_options(call, given, &options));
    for (size_t i = 0; i < n_shards; i++) {
        NN_TRY(nn_check_parameter_dtype(call, number_of(i).text, shards[i].dtype));
    }
    shoal_nn_optimizer *optimizer;
    NN_TRY(nn_optimizer_allocate(call, rule, &options, n_shards, &optimizer));
    optimizer->is_raw = true;
    for (size_t i = 0; i < n_shards; i++) {
        optimizer->parameters[i].count = shards[i].count;
        optimizer->parameters[i].dtype = shards[i].dtype;
    }
    *optimizer_out = optimizer;
    return SHOAL_OK;
}

shoal_status nn_widen_sgd_options(const char *call, const shoal_nn_sgd_options *given,
                                  shoal_nn_adamw_options *wide_out)
{
    shoal_nn_sgd_options options = SHOAL_NN_SGD_OPTIONS_INIT;
    *wide_out = (shoal_nn_adamw_options)SHOAL_NN_ADAMW_OPTIONS_INIT;
    if (given) {
        NN_TRY(nn_struct_read(call, "options", given, &options, sizeof(options)));
    }
    wide_out->lr = options.lr;
    return SHOAL_OK;
}

shoal_status shoal_nn_sgd_create(shoal_tensor *const *parameters, size_t n_parameters,
                                 const shoal_nn_sgd_options *options, shoal_nn_optimizer **optimizer_out)
{
    shoal_nn_adamw_options wide;
    NN_TRY(nn_widen_sgd_options("nn_sgd_create", options, &wide));
    return create("nn_sgd_create", NN_RULE_SGD, parameters, n_parameters, &wide, optimizer_out);
}

shoal_status shoal_nn_sgd_create_raw(const shoal_nn_shard *shards, size_t n_shards,
                                     const shoal_nn_sgd_options *options, shoal_nn_optimizer **optimizer_out)
{
    shoal_nn_adamw_options wide;
    NN_TRY(nn_widen_sgd_options("nn_sgd_create_raw", options, &wide));
    return create_raw("nn_sgd_create_raw", NN_RULE_SGD, shards, n_shards, &wide, optimizer_out);
}

shoal_status shoal_nn_adamw_create(shoal_tensor *const *parameters, size_t n_parameters,
                                   const shoal_nn_adamw_options *options, shoal_nn_optimizer **optimizer_out)
{
    return create("nn_adamw_create", NN_RULE_ADAMW, parameters, n_parameters, options, optimizer_out);
}

shoal_status shoal_nn_adamw_create_raw(const shoal_nn_shard *shards, size_t n_shards,
                                       const shoal_nn_adamw_options *options,
                                       shoal_nn_optimizer **optimizer_out)
{
    return create_raw("nn_adamw_create_raw", NN_RULE_ADAMW, shards, n_shards, options, optimizer_out);
}

static void free_parameter(struct nn_parameter *parameter)
{
    for (int i = 0; i < NN_N_MOMENTS; i++) {
        shoal_tensor_unref(parameter->moments[i]);
    }
    shoal_tensor_unref(parameter->tensor);
    free(parameter->path);
}

void shoal_nn_optimizer_free(shoal_nn_optimizer *optimizer)
{
    if (!optimizer || atomic_fetch_sub(&optimizer->n_references, 1) > 1) {
        return;
    }
    for (size_t i = 0; i < optimizer->n_parameters; i++) {
        free_parameter(&optimizer->parameters[i]);
    }
    for (size_t i = 0; i < optimizer->n_groups; i++) {
        free((char *)(uintptr_t)optimizer->groups[i].pattern);
    }
    free(optimizer->groups);
    free(optimizer->paths);
    free(optimizer);
}

/* Around steps ----------------------------------------------------------------------------------------- */

shoal_status shoal_nn_optimizer_zero_grad(shoal_nn_optimizer *optimizer)
{
    NN_TRY(nn_check_kind("nn_optimizer_zero_grad", optimizer, /*is_raw=*/false));
    for (size_t i = 0; i < optimizer->n_parameters; i++) {
        if (shoal_grad(optimizer->parameters[i].tensor)) {
            NN_TRY(shoal_set_grad(optimizer->parameters[i].tensor, NULL));
        }
    }
    return SHOAL_OK;
}

size_t shoal_nn_optimizer_count(const shoal_nn_optimizer *optimizer)
{
    return optimizer ? optimizer->n_parameters : 0;
}

double shoal_nn_optimizer_lr(const shoal_nn_optimizer *optimizer)
{
    return optimizer ? optimizer->options.lr : 0;
}

shoal_status shoal_nn_optimizer_set_lr(shoal_nn_optimizer *optimizer, double lr)
{
    static const char call[] = "nn_optimizer_set_lr";
    if (!optimizer) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: optimizer is NULL", call);
    }
    NN_TRY(nn_check_number(call, "lr", lr, (double)INFINITY));
    for (size_t i = 0; i < optimizer->n_groups; i++) {
        NN_TRY(
            nn_check_number(call, "lr * lr_factor", lr * optimizer->groups[i].lr_factor, (double)INFINITY));
    }
    optimizer->options.lr = lr;
    return SHOAL_OK;
}
