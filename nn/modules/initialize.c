/* SPDX-License-Identifier: MIT */
/*
 * Initial values of a module's parameters. First all matching parameters are found, checked and opened; then they are
 * filled, which cannot fail on the CPU. Values for another device are made in host memory, one parameter after the
 * other, and copied there. A shard gets the values that its part of the whole parameter would get.
 */
#include "modules/initialize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"
#include "math/pattern.h"
#include "modules/random.h"
#include "shoal/fully_shard.h"
#include "shoal/scope.h"
#include "common/try.h"

struct parameter {
    struct nn_target target;
    struct nn_sequence sequence;
    struct nn_law law;
    struct nn_runs runs;
};

struct initialization {
    const char *call;
    shoal_module *module;
    nn_chooser choose;
    const void *context;
    uint64_t seed;
    struct parameter *parameters;
    size_t n_parameters;
    size_t capacity;
    void *host; /* values of one parameter on another device; NULL if there is none */
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
        return shoal_fail(SHOAL_ERR_NO_MEMORY, "%s: no memory for a list of %zu parameters",
                          initialization->call, capacity);
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

static shoal_status describe(const struct initialization *initialization,
                             const shoal_nn_distribution *distribution, const shoal_module_entry *entry,
                             struct parameter *parameter)
{
    const char *call = initialization->call;
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    const shoal_nn_draws draws = {.seed = initialization->seed, .stream = shoal_nn_stream(entry->path)};
    NN_TRY(find_part(initialization->module, entry, &layout));
    parameter->sequence = nn_sequence_of(&draws);
    NN_TRY(nn_law_of(call, distribution, layout.shape, layout.n_dims, &parameter->law));
    parameter->runs = (struct nn_runs){.n_runs = 1, .run = 1};
    if (layout.n_dims > 0) {
        const shoal_nn_part part = {layout.shape, layout.n_dims, layout.dim, layout.offset, layout.length};
        NN_TRY(nn_runs_of(call, &part, &parameter->runs));
    }
    return nn_target_open(call, entry->tensor, /*reads=*/false, &parameter->target);
}

/* Puts the parameter into the text of an error. */
static shoal_status name_parameter(shoal_status status, const char *call, const char *path)
{
    char text[512];
    const size_t length = strlen(call);
    (void)snprintf(text, sizeof(text), "%s", shoal_error_text());
    bool is_named = strncmp(text, call, length) == 0 && strncmp(text + length, ": ", 2) == 0;
    return shoal_fail(status, "%s: parameter %.200s: %s", call, path, is_named ? text + length + 2 : text);
}

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct initialization *initialization = context;
    (void)next;
    const shoal_nn_distribution *distribution = initialization->choose(initialization->context, entry);
    if (!distribution) {
        return SHOAL_OK;
    }
    NN_TRY(grow(initialization));
    struct parameter *parameter = &initialization->parameters[initialization->n_parameters];
    shoal_status status = describe(initialization, distribution, entry, parameter);
    if (status != SHOAL_OK) {
        return name_parameter(status, initialization->call, entry->path);
    }
    initialization->n_parameters++;
    return SHOAL_OK;
}

/* Host memory that is large enough for every parameter on another device. */
static shoal_status make_host_memory(struct initialization *initialization)
{
    size_t most = 0;
    for (size_t i = 0; i < initialization->n_parameters; i++) {
        size_t bytes = initialization->parameters[i].target.host_bytes;
        most = bytes > most ? bytes : most;
    }
    return most > 0 ? nn_scratch(NULL, most, 1, &initialization->host) : SHOAL_OK;
}

static shoal_status fill_all(struct initialization *initialization)
{
    NN_TRY(shoal_module_walk(initialization->module, SHOAL_WALK_PARAMETERS, visit, initialization));
    NN_TRY(make_host_memory(initialization));
    for (size_t i = 0; i < initialization->n_parameters; i++) {
        struct parameter *parameter = &initialization->parameters[i];
        if (parameter->target.host_bytes > 0) {
            parameter->target.data = initialization->host;
        }
        nn_fill_runs(&parameter->sequence, &parameter->law, &parameter->runs, parameter->target.dtype,
                     parameter->target.data);
        NN_TRY(nn_target_store(&parameter->target));
    }
    return SHOAL_OK;
}

shoal_status nn_initialize_chosen(const char *call, shoal_module *module, nn_chooser choose,
                                  const void *context, uint64_t seed, size_t *n_filled_out)
{
    struct initialization initialization = {
        .call = call, .module = module, .choose = choose, .context = context, .seed = seed};
    shoal_status status = fill_all(&initialization);
    for (size_t i = 0; i < initialization.n_parameters; i++) {
        nn_target_close(&initialization.parameters[i].target);
    }
    free(initialization.parameters);
    free(initialization.host);
    NN_TRY(status);
    *n_filled_out = initialization.n_parameters;
    return SHOAL_OK;
}

/* By pattern -------------------------------------------------------------------------------------------- */

struct matching {
    const char *pattern;
    const shoal_nn_distribution *distribution;
};

static const shoal_nn_distribution *choose_matching(const void *context, const shoal_module_entry *entry)
{
    const struct matching *matching = context;
    return nn_matches(matching->pattern, entry->path) ? matching->distribution : NULL;
}

shoal_status shoal_nn_initialize(shoal_module *module, const char *pattern,
                                 const shoal_nn_distribution *given, uint64_t seed)
{
    const char *call = "nn_initialize";
    shoal_nn_distribution distribution = {.struct_size = sizeof(distribution)};
    const struct matching matching = {pattern, &distribution};
    size_t n_filled = 0;
    if (!module) {
        return shoal_fail_null(call, "module");
    }
    if (!pattern) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: pattern is NULL", call);
    }
    NN_TRY(nn_read_distribution(call, given, &distribution));
    NN_TRY(nn_initialize_chosen(call, module, choose_matching, &matching, seed, &n_filled));
    if (n_filled == 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: no parameter has a path like \"%.128s\"", call, pattern);
    }
    return SHOAL_OK;
}
