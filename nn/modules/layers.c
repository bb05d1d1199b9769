/* SPDX-License-Identifier: MIT */
/* Ready-made layers that call one operation: linear, embedding, norms. */
#include <math.h>

#include "common/check.h"
#include "modules/module.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "shoal_nn/nn.h"
#include "common/try.h"

static const shoal_nn_distribution zeros = SHOAL_NN_UNIFORM(0, 0);
static const shoal_nn_distribution ones = SHOAL_NN_UNIFORM(1, 1);

/* Linear ------------------------------------------------------------------------------------------------ */

static shoal_status forward_linear(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *weight = shoal_module_parameter(module, "weight");
    shoal_tensor *bias = shoal_module_find_parameter(module, "bias");
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = nn_module_settings(module)->is_projection ? shoal_nn_projection(inputs[0], weight, bias)
                                                           : shoal_nn_linear(inputs[0], weight, bias);
    return SHOAL_OK;
}

shoal_status nn_make_linear(const shoal_nn_linear_options *options, shoal_module **module_out)
{
    const struct nn_place place = {options->dtype, options->device};
    const struct nn_settings settings = {.n_inputs = 1, .is_projection = options->is_projection};
    const int64_t shape[] = {options->is_projection ? options->n_in : options->n_out,
                             options->is_projection ? options->n_out : options->n_in};
    const double bound = 1 / sqrt((double)options->n_in);
    const shoal_nn_distribution uniform = SHOAL_NN_UNIFORM(-bound, bound);
    const shoal_nn_distribution normal = SHOAL_NN_NORMAL(0, options->std);
    shoal_module *module = NULL;
    shoal_status status = nn_module_make("linear", forward_linear, &settings, &module);
    NN_TRY_GOTO(status, status, failed);
    NN_TRY_GOTO(status,
                nn_module_add(module, "weight", shape, 2, place, options->std > 0 ? &normal : &uniform),
                failed);
    if (!options->has_no_bias) {
        NN_TRY_GOTO(
            status,
            nn_module_add(module, "bias", &options->n_out, 1, place, options->std > 0 ? &zeros : &uniform),
            failed);
    }
    *module_out = module;
    return SHOAL_OK;
failed:
    shoal_module_unref(module);
    return status;
}

shoal_status shoal_nn_linear_create(const shoal_nn_linear_options *given, shoal_module **module_out)
{
    const char *call = "nn_linear_create";
    shoal_nn_linear_options options = SHOAL_NN_LINEAR_OPTIONS_INIT;
    shoal_module *module = NULL;
    NN_TRY(nn_read_options(call, given, &options, sizeof(options), module_out));
    NN_TRY(nn_check_place(call, "SHOAL_NN_LINEAR_OPTIONS_INIT",
                          (struct nn_place){options.dtype, options.device}));
    NN_TRY(nn_check_count(call, "n_in", options.n_in));
    NN_TRY(nn_check_count(call, "n_out", options.n_out));
    NN_TRY(nn_check_number(call, "std", options.std, (double)INFINITY));
    NN_TRY(nn_make_linear(&options, &module));
    return nn_module_finish(module, options.seed, options.device, module_out);
}

/* Embedding --------------------------------------------------------------------------------------------- */

static shoal_status forward_embedding(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                      shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_nn_embedding(inputs[0], shoal_module_parameter(module, "weight"));
    return SHOAL_OK;
}

shoal_status nn_make_embedding(const shoal_nn_embedding_options *options, shoal_module **module_out)
{
    const struct nn_settings settings = {.n_inputs = 1};
    const int64_t shape[] = {options->n_rows, options->width};
    const shoal_nn_distribution normal = SHOAL_NN_NORMAL(0, options->std);
    shoal_module *module = NULL;
    NN_TRY(nn_module_make("embedding", forward_embedding, &settings, &module));
    shoal_status status = nn_module_add(module, "weight", shape, 2,
                                        (struct nn_place){options->dtype, options->device}, &normal);
    if (status != SHOAL_OK) {
        shoal_module_unref(module);
        return status;
    }
    *module_out = module;
    return SHOAL_OK;
}

shoal_status shoal_nn_embedding_create(const shoal_nn_embedding_options *given, shoal_module **module_out)
{
    const char *call = "nn_embedding_create";
    shoal_nn_embedding_options options = SHOAL_NN_EMBEDDING_OPTIONS_INIT;
    shoal_module *module = NULL;
    NN_TRY(nn_read_options(call, given, &options, sizeof(options), module_out));
    NN_TRY(nn_check_place(call, "SHOAL_NN_EMBEDDING_OPTIONS_INIT",
                          (struct nn_place){options.dtype, options.device}));
    NN_TRY(nn_check_count(call, "n_rows", options.n_rows));
    NN_TRY(nn_check_count(call, "width", options.width));
    NN_TRY(nn_check_number(call, "std", options.std, (double)INFINITY));
    NN_TRY(nn_make_embedding(&options, &module));
    return nn_module_finish(module, options.seed, options.device, module_out);
}

/* Norms ------------------------------------------------------------------------------------------------- */

static shoal_status forward_layer_norm(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                       shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] =
        shoal_nn_layer_norm(inputs[0], shoal_module_parameter(module, "weight"),
                            shoal_module_find_parameter(module, "bias"), nn_module_settings(module)->eps);
    return SHOAL_OK;
}

static shoal_status forward_rms_norm(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                     shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_nn_rms_norm(inputs[0], shoal_module_parameter(module, "weight"),
                                   nn_module_settings(module)->eps);
    return SHOAL_OK;
}

static shoal_status make_norm(const char *type, shoal_module_forward forward, bool has_bias,
                              const shoal_nn_norm_options *options, shoal_module **module_out)
{
    const struct nn_place place = {options->dtype, options->device};
    const struct nn_settings settings = {.n_inputs = 1, .eps = options->eps};
    shoal_module *module = NULL;
    shoal_status status = nn_module_make(type, forward, &settings, &module);
    NN_TRY_GOTO(status, status, failed);
    NN_TRY_GOTO(status, nn_module_add(module, "weight", &options->width, 1, place, &ones), failed);
    if (has_bias) {
        NN_TRY_GOTO(status, nn_module_add(module, "bias", &options->width, 1, place, &zeros), failed);
    }
    *module_out = module;
    return SHOAL_OK;
failed:
    shoal_module_unref(module);
    return status;
}

shoal_status nn_make_layer_norm(const shoal_nn_norm_options *options, shoal_module **module_out)
{
    return make_norm("layer_norm", forward_layer_norm, !options->has_no_bias, options, module_out);
}

static shoal_status read_norm(const char *call, const shoal_nn_norm_options *given,
                              shoal_nn_norm_options *options, shoal_module *const *module_out)
{
    *options = (shoal_nn_norm_options)SHOAL_NN_NORM_OPTIONS_INIT;
    NN_TRY(nn_read_options(call, given, options, sizeof(*options), module_out));
    NN_TRY(nn_check_place(call, "SHOAL_NN_NORM_OPTIONS_INIT",
                          (struct nn_place){options->dtype, options->device}));
    NN_TRY(nn_check_count(call, "width", options->width));
    return nn_check_number(call, "eps", options->eps, (double)INFINITY);
}

shoal_status shoal_nn_layer_norm_create(const shoal_nn_norm_options *given, shoal_module **module_out)
{
    shoal_nn_norm_options options;
    shoal_module *module = NULL;
    NN_TRY(read_norm("nn_layer_norm_create", given, &options, module_out));
    NN_TRY(nn_make_layer_norm(&options, &module));
    return nn_module_finish(module, /*seed=*/0, options.device, module_out);
}

shoal_status shoal_nn_rms_norm_create(const shoal_nn_norm_options *given, shoal_module **module_out)
{
    shoal_nn_norm_options options;
    shoal_module *module = NULL;
    NN_TRY(read_norm("nn_rms_norm_create", given, &options, module_out));
    NN_TRY(make_norm("rms_norm", forward_rms_norm, /*has_bias=*/false, &options, &module));
    return nn_module_finish(module, /*seed=*/0, options.device, module_out);
}
