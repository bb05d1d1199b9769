/* SPDX-License-Identifier: MIT */
/*
 * Initial values of a module's parameters. First all that match are found, checked and opened; then they are filled,
 * which cannot fail. A shard is filled as a part of the whole parameter that it was cut from.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops.h"
#include "pattern.h"
#include "random.h"
#include "shoal/fully_shard.h"
#include "try.h"

#define CALL "nn_initialize"

struct parameter {
    struct nn_target target;
    struct nn_sequence sequence;
    struct nn_law law;
    struct nn_runs runs;
};

struct initialization {
    shoal_module *module;
    const char *pattern;
    const shoal_nn_distribution *distribution;
    uint64_t seed;
    struct parameter *parameters;
    size_t n_parameters;
    size_t capacity;
};

static shoal_status grow(struct initialization *initialization)
{
    if (initialization->n_parameters < initialization->capacity) {
        return SHOAL_OK;
    }
    size_t capacity = initialization->capacity > 0 ? 2 * initialization->capacity : 16;
    struct parameter *parameters =
        realloc(initialization->parameters, capacity * sizeof(initialization->parameters[0]));
    if (!parameters) {
        return shoal_fail(SHOAL_ERR_NO_MEMORY, CALL ": a list of %zu parameters", capacity);
    }
    initialization->parameters = parameters;
    initialization->capacity = capacity;
    return SHOAL_OK;
}

/* The part of a whole parameter that the tensor in this place is: all of it, unless it is a shard. */
static shoal_status find_part(shoal_module *module, const shoal_module_entry *entry,
                              shoal_shard_layout *layout)
{
    const shoal_tensor *tensor = entry->tensor;
    shoal_fsdp_param *param = NULL;
    size_t bytes = (size_t)shoal_tensor_n_dims(tensor) * sizeof(layout->shape[0]);
    NN_TRY(shoal_fully_shard_find_param(module, entry, &param));
    if (param) {
        NN_TRY(shoal_fsdp_get_layout(param, layout));
        if (layout->n_dims != shoal_tensor_n_dims(tensor) ||
            memcmp(layout->shard_shape, shoal_tensor_shape(tensor), bytes) != 0) {
            return shoal_fail(SHOAL_ERR_STATE, "shape %s is not that of its shard",
                              nn_shape_text(tensor).text);
        }
        return SHOAL_OK;
    }
    layout->n_dims = shoal_tensor_n_dims(tensor);
    layout->dim = 0;
    layout->offset = 0;
    layout->length = layout->n_dims > 0 ? shoal_tensor_shape(tensor)[0] : 1;
    memcpy(layout->shape, shoal_tensor_shape(tensor), bytes);
    return SHOAL_OK;
}

static shoal_status describe(const struct initialization *initialization, const shoal_module_entry *entry,
                             struct parameter *parameter)
{
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    const shoal_nn_draws draws = {.seed = initialization->seed, .stream = shoal_nn_stream(entry->path)};
    NN_TRY(find_part(initialization->module, entry, &layout));
    parameter->sequence = nn_sequence_of(&draws);
    NN_TRY(nn_law_of(CALL, initialization->distribution, layout.shape, layout.n_dims, &parameter->law));
    parameter->runs = (struct nn_runs){.n_runs = 1, .run = 1};
    if (layout.n_dims > 0) {
        const shoal_nn_part part = {layout.shape, layout.n_dims, layout.dim, layout.offset, layout.length};
        NN_TRY(nn_runs_of(CALL, &part, &parameter->runs));
    }
    return nn_target_open(CALL, entry->tensor, /*reads=*/false, &parameter->target);
}

/* Puts the parameter into the text of an error. */
static shoal_status name_parameter(shoal_status status, const char *path)
{
    char text[512];
    const size_t prefix = strlen(CALL ": ");
    (void)snprintf(text, sizeof(text), "%s", shoal_error_text());
    return shoal_fail(status, CALL ": parameter %.200s: %s", path,
                      strncmp(text, CALL ": ", prefix) == 0 ? text + prefix : text);
}

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct initialization *initialization = context;
    (void)next;
    if (!nn_matches(initialization->pattern, entry->path)) {
        return SHOAL_OK;
    }
    NN_TRY(grow(initialization));
    struct parameter *parameter = &initialization->parameters[initialization->n_parameters];
    shoal_status status = describe(initialization, entry, parameter);
    if (status != SHOAL_OK) {
        return name_parameter(status, entry->path);
    }
    initialization->n_parameters++;
    return SHOAL_OK;
}

static shoal_status fill_all(struct initialization *initialization)
{
    NN_TRY(shoal_module_walk(initialization->module, SHOAL_WALK_PARAMETERS, visit, initialization));
    if (initialization->n_parameters == 0) {
        return shoal_fail(SHOAL_ERR_INVALID, CALL ": no parameter has a path like \"%.128s\"",
                          initialization->pattern);
    }
    for (size_t i = 0; i < initialization->n_parameters; i++) {
        const struct parameter *parameter = &initialization->parameters[i];
        nn_fill_runs(&parameter->sequence, &parameter->law, &parameter->runs, parameter->target.dtype,
                     parameter->target.data);
        nn_target_store(&parameter->target);
    }
    return SHOAL_OK;
}

shoal_status shoal_nn_initialize(shoal_module *module, const char *pattern,
                                 const shoal_nn_distribution *distribution, uint64_t seed)
{
    struct initialization initialization = {
        .module = module, .pattern = pattern, .distribution = distribution, .seed = seed};
    if (!module || !pattern) {
        return shoal_fail(SHOAL_ERR_INVALID, CALL ": %s is NULL", module ? "pattern" : "module");
    }
    NN_TRY(nn_check_distribution(CALL, distribution));
    shoal_status status = fill_all(&initialization);
    for (size_t i = 0; i < initialization.n_parameters; i++) {
        nn_target_close(&initialization.parameters[i].target);
    }
    free(initialization.parameters);
    return status;
}
