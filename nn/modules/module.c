/* SPDX-License-Identifier: MIT */
/*
 * What all ready-made modules share: settings, parameters, checks, and initial values. A module is recognized as
 * ready-made by the function that frees its context: no other module uses that function.
 */
#include "modules/module.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/struct_size.h"
#include "math/products.h"
#include "modules/initialize.h"
#include "shoal/autograd.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "common/try.h"

/* Making ------------------------------------------------------------------------------------------------ */

static void free_settings(void *context)
{
    free(context);
}

shoal_status nn_module_make(const char *type, shoal_module_forward forward,
                            const struct nn_settings *settings, shoal_module **module_out)
{
    shoal_module_definition definition = SHOAL_MODULE_DEFINITION_INIT;
    struct nn_settings *copy = malloc(sizeof(*copy));
    if (!copy) {
        return shoal_fail(SHOAL_ERR_NO_MEMORY, "no memory for the settings of a module \"%s\"", type);
    }
    (void)nn_products_load(); /* ranks compare what computes them before the first call of a wrapped module */
    *copy = *settings;
    definition.type = type;
    definition.forward = forward;
    definition.n_inputs = settings->n_inputs;
    definition.context = copy;
    definition.destroy = free_settings;
    shoal_status status = shoal_module_create(&definition, module_out);
    if (status != SHOAL_OK) {
        free(copy);
    }
    return status;
}

/* NULL for a module that is not ours. */
static struct nn_settings *find_settings(const shoal_module *module)
{
    const shoal_module_definition *definition = shoal_module_get_definition(module);
    return definition && definition->destroy == free_settings ? definition->context : NULL;
}

const struct nn_settings *nn_module_settings(const shoal_module *module)
{
    return shoal_module_context(module);
}

/* A reference for the caller. */
static shoal_status make_parameter(const int64_t *shape, int n_dims, struct nn_place place,
                                   shoal_tensor **parameter_out)
{
    NN_TRY(shoal_scope_begin());
    shoal_tensor *parameter = shoal_tensor_ref(shoal_empty_on(shape, n_dims, place.dtype, place.device));
    shoal_status status = shoal_scope_end();
    if (status != SHOAL_OK) {
        shoal_tensor_unref(parameter);
        return status;
    }
    *parameter_out = parameter;
    return SHOAL_OK;
}

shoal_status nn_module_add(shoal_module *module, const char *name, const int64_t *shape, int n_dims,
                           struct nn_place place, const shoal_nn_distribution *distribution)
{
    struct nn_settings *settings = find_settings(module);
    shoal_tensor *parameter = NULL;
    NN_TRY(make_parameter(shape, n_dims, place, &parameter));
    shoal_status status = shoal_set_requires_grad(parameter, true);
    if (status == SHOAL_OK) {
        status = shoal_module_add_parameter(module, name, parameter);
    }
    shoal_tensor_unref(parameter);
    NN_TRY(status);
    settings->rules[settings->n_rules].name = name;
    settings->rules[settings->n_rules].distribution = *distribution;
    settings->n_rules++;
    return SHOAL_OK;
}

shoal_status nn_module_adopt(shoal_module *module, const char *name, shoal_module *child)
{
    shoal_status status = shoal_module_add_child(module, name, child);
    shoal_module_unref(child);
    return status;
}

/* Initial values ---------------------------------------------------------------------------------------- */

/* The distribution of a parameter of ours; NULL if it is somebody else's. */
static const shoal_nn_distribution *choose(const void *context, const shoal_module_entry *entry)
{
    const struct nn_settings *settings = find_settings(entry->module);
    (void)context;
    for (size_t i = 0; settings && i < settings->n_rules; i++) {
        if (strcmp(settings->rules[i].name, entry->name) == 0) {
            return &settings->rules[i].distribution;
        }
    }
    return NULL;
}

shoal_status shoal_nn_initialize_modules(shoal_module *module, uint64_t seed)
{
    const char *call = "nn_initialize_modules";
    size_t n_filled = 0;
    if (!module) {
        return shoal_fail_null(call, "module");
    }
    NN_TRY(nn_initialize_chosen(call, module, choose, NULL, seed, &n_filled));
    if (n_filled == 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: no parameter belongs to a module of shoal_nn/modules.h",
                          call);
    }
    return SHOAL_OK;
}

shoal_status nn_module_finish(shoal_module *module, uint64_t seed, shoal_device device,
                              shoal_module **module_out)
{
    shoal_status status = device == SHOAL_META ? SHOAL_OK : shoal_nn_initialize_modules(module, seed);
    if (status != SHOAL_OK) {
        shoal_module_unref(module);
        return status;
    }
    *module_out = module;
    return SHOAL_OK;
}

/* Checks ------------------------------------------------------------------------------------------------ */

shoal_status nn_read_options(const char *call, const void *options, void *ours, size_t our_bytes,
                             const void *module_out)
{
    if (!options || !module_out) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s is NULL", call, options ? "module_out" : "options");
    }
    return nn_struct_read(call, "options", options, ours, our_bytes);
}

shoal_status nn_check_count(const char *call, const char *name, int64_t value)
{
    if (value < 1) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s: %" PRId64 " is not at least 1", call, name, value);
    }
    if (value > NN_MAX_SIZE) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s: %" PRId64 " is above %" PRId64, call, name, value,
                          NN_MAX_SIZE);
    }
    return SHOAL_OK;
}

shoal_status nn_check_place(const char *call, const char *init, struct nn_place place)
{
    if ((int)place.dtype == 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: dtype is 0, perhaps forgotten; begin with %s (f32)", call,
                          init);
    }
    if (place.dtype != SHOAL_F64 && place.dtype != SHOAL_F32 && place.dtype != SHOAL_F16 &&
        place.dtype != SHOAL_BF16) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: dtype: %d (%s) is not f64, f32, f16 or bf16", call,
                          (int)place.dtype, shoal_dtype_name(place.dtype));
    }
    if (shoal_device_name(place.device)[0] == '\0') {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: device: %d is not a device", call, (int)place.device);
    }
    return SHOAL_OK;
}

/* Inside forward functions ------------------------------------------------------------------------------ */

shoal_status nn_take_inputs(const shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                            struct nn_inputs *inputs_out)
{
    if (n_inputs < 1 || n_inputs > 2) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %zu inputs, not one or two: a tensor, and a position",
                          shoal_module_type(module), n_inputs);
    }
    if (!inputs[0]) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: input 0 is NULL", shoal_module_type(module));
    }
    *inputs_out = (struct nn_inputs){.first = inputs[0], .position = n_inputs > 1 ? inputs[1] : NULL};
    return SHOAL_OK;
}

shoal_tensor *nn_call_child(shoal_module *module, const char *name, shoal_tensor *input)
{
    shoal_module *child = shoal_module_child(module, name);
    return child ? shoal_module_call_one(child, input) : NULL;
}

shoal_tensor *nn_call_child_at(shoal_module *module, const char *name, shoal_tensor *input,
                               shoal_tensor *position)
{
    shoal_tensor *inputs[] = {input, position};
    shoal_tensor *output = NULL;
    shoal_module *child = shoal_module_child(module, name);
    return child && shoal_module_call(child, inputs, 2, &output, 1) == SHOAL_OK ? output : NULL;
}

shoal_tensor *nn_drop(shoal_tensor *tensor, shoal_tensor *position, uint64_t stream, double p)
{
    return position && p > 0 ? shoal_nn_dropout(tensor, position, stream, p) : tensor;
}
