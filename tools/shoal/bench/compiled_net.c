/* SPDX-License-Identifier: MIT */
/*
 * The network of `shoal bench compiled`: each unit has two blocks x + W2 gelu(W1 norm(x) + b1) + b2, with W1 [3w, w],
 * W2 [w, 3w] and a norm with a weight and a bias. Like a transformer it has few large parameters and many small ones.
 * The loss is the mean squared error of the last unit's output.
 */
#include "bench/compiled.h"

#include "base/try.h"
#include "shoal/autograd.h"
#include "shoal/ddp.h"
#include "shoal/fully_shard.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal_nn/nn.h"

#include <math.h>
#include <stdio.h>

/* Small enough that the weights stay where they began for as many rounds as anybody asks for. */
#define LEARNING_RATE 0.01f

#define NORM_EPS 1e-5

enum {
    N_INPUTS = 2,
    N_BLOCKS = 2 /* of a unit */
};

/* Of a block. */
enum parameter {
    NORM_WEIGHT,
    NORM_BIAS,
    WIDE,
    WIDE_BIAS,
    NARROW,
    NARROW_BIAS,
    N_PARAMETERS
};

/* Sizes are in widths. If `columns` is 0, there is one dimension. */
static const struct parameter_row {
    const char *name;
    int64_t rows;
    int64_t columns;
} parameter_rows[N_PARAMETERS] = {
    [NORM_WEIGHT] = {"norm_weight", 1, 0},         [NORM_BIAS] = {"norm_bias", 1, 0},
    [WIDE] = {"wide", BENCH_FSDP_WIDENING, 1},     [WIDE_BIAS] = {"wide_bias", BENCH_FSDP_WIDENING, 0},
    [NARROW] = {"narrow", 1, BENCH_FSDP_WIDENING}, [NARROW_BIAS] = {"narrow_bias", 1, 0},
};

size_t bench_compiled_count_params(const struct bench_fsdp_work *work)
{
    size_t width = (size_t)work->width;
    size_t count = 0;
    for (size_t i = 0; i < N_PARAMETERS; i++) {
        const struct parameter_row *row = &parameter_rows[i];
        count += (size_t)row->rows * width * (row->columns > 0 ? (size_t)row->columns * width : 1);
    }
    return count * N_BLOCKS * (size_t)work->n_units;
}

/* Numbers between -1 and 1 that depend on nothing but the seed. */
static void draw(shoal_tensor *tensor, uint32_t seed, float scale)
{
    float *data = tensor ? shoal_mutable_data(tensor) : NULL;
    int64_t count = data ? shoal_tensor_count(tensor) : 0;
    seed = seed * 2654435761u + 99u;
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        data[i] = ((float)(seed >> 8) / 8388608.0f - 1.0f) * scale;
    }
}

/* Modules ------------------------------------------------------------------------------------------------ */

static shoal_tensor *parameter_at(shoal_module *module, size_t block, enum parameter parameter)
{
    return shoal_module_parameter_at(module, block * N_PARAMETERS + parameter, NULL);
}

static shoal_status forward_unit(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *values = inputs[0];
    (void)n_inputs;
    (void)n_outputs;
    for (size_t i = 0; i < N_BLOCKS; i++) {
        shoal_tensor *normal = shoal_nn_layer_norm(values, parameter_at(module, i, NORM_WEIGHT),
                                                   parameter_at(module, i, NORM_BIAS), NORM_EPS);
        shoal_tensor *wide =
            shoal_nn_linear(normal, parameter_at(module, i, WIDE), parameter_at(module, i, WIDE_BIAS));
        shoal_tensor *narrow = shoal_nn_linear(shoal_nn_gelu(wide), parameter_at(module, i, NARROW),
                                               parameter_at(module, i, NARROW_BIAS));
        values = shoal_add(values, narrow);
    }
    outputs[0] = values;
    return SHOAL_OK;
}

static shoal_status forward_root(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *values = inputs[0];
    shoal_module *unit;
    (void)n_inputs;
    (void)n_outputs;
    for (size_t i = 0; (unit = shoal_module_child_at(module, i, NULL)) != NULL; i++) {
        values = shoal_module_call_one(unit, values);
    }
    outputs[0] = values;
    return SHOAL_OK;
}

static shoal_status add_parameter(shoal_module *unit, int unit_number, int number, int64_t width)
{
    const struct parameter_row *row = &parameter_rows[number % N_PARAMETERS];
    const int64_t shape[] = {row->rows * width, row->columns * width};
    char name[32];
    shoal_tensor *weight = shoal_empty(shape, row->columns > 0 ? 2 : 1, SHOAL_F32);
    if (!weight) {
        return shoal_scope_error();
    }
    draw(weight, (uint32_t)(unit_number * N_BLOCKS * N_PARAMETERS + number),
         1.0f / sqrtf((float)(row->columns > 0 ? shape[1] : shape[0])));
    TRY(shoal_set_requires_grad(weight, true));
    (void)snprintf(name, sizeof(name), "%s%d", row->name, number / N_PARAMETERS);
    return shoal_module_add_parameter(unit, name, weight);
}

/* The unit alone has its weights afterwards: whole ones that are cut then go at once. */
static shoal_status fill_unit(shoal_module *unit, int number, int64_t width)
{
    TRY(shoal_scope_begin());
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < N_BLOCKS * N_PARAMETERS && status == SHOAL_OK; i++) {
        status = add_parameter(unit, number, i, width);
    }
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

static shoal_status add_unit(shoal_module *root, int number, int64_t width,
                             const shoal_fully_shard_options *shards)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof(definition), .type = "unit", .forward = forward_unit, .n_inputs = 1};
    shoal_module *unit;
    char name[16];
    TRY(shoal_module_create(&definition, &unit));
    (void)snprintf(name, sizeof(name), "%d", number);
    shoal_status status = fill_unit(unit, number, width);
    if (status == SHOAL_OK && shards) {
        status = shoal_fully_shard(unit, shards);
    }
    if (status == SHOAL_OK) {
        status = shoal_module_add_child(root, name, unit);
    }
    shoal_module_unref(unit);
    return status;
}

/* Steps -------------------------------------------------------------------------------------------------- */

static shoal_status step(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *values = shoal_module_call_one(context, inputs[0]);
    outputs[0] = shoal_nn_mse(values, inputs[1]);
    return outputs[0] ? shoal_backward(outputs[0], NULL) : shoal_scope_error();
}

static shoal_status step_eagerly(const struct bench_compiled_net *net, shoal_tensor *const *inputs,
                                 shoal_tensor **loss_out)
{
    shoal_tensor *loss = NULL;
    TRY(shoal_scope_begin());
    shoal_status status = step(net->root, inputs, N_INPUTS, &loss, 1);
    if (status == SHOAL_OK) {
        *loss_out = shoal_tensor_ref(loss);
    }
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

shoal_status bench_compiled_step(const struct bench_compiled_net *net, shoal_tensor *const *inputs,
                                 shoal_tensor **loss_out)
{
    return net->compiled ? shoal_compiled_run(net->compiled, inputs, N_INPUTS, loss_out, 1)
                         : step_eagerly(net, inputs, loss_out);
}

static shoal_status update(shoal_tensor *parameter)
{
    shoal_tensor *gradient = shoal_grad(parameter);
    int64_t count = gradient ? shoal_tensor_count(parameter) : 0;
    float *weights = count > 0 ? shoal_mutable_data(parameter) : NULL;
    const float *values = count > 0 ? shoal_data(gradient) : NULL;
    for (int64_t i = 0; weights && values && i < count; i++) {
        weights[i] -= LEARNING_RATE * values[i];
    }
    return shoal_set_grad(parameter, NULL);
}

shoal_status bench_compiled_update(const struct bench_compiled_net *net)
{
    size_t n_parameters = 0;
    TRY(shoal_scope_begin());
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n_parameters);
    shoal_status status = parameters ? SHOAL_OK : shoal_scope_error();
    for (size_t i = 0; parameters && i < n_parameters && status == SHOAL_OK; i++) {
        status = update(parameters[i]);
    }
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

shoal_status bench_compiled_make_inputs(const struct bench_compiled *bench, shoal_tensor **inputs_out)
{
    const int64_t shape[] = {bench->work.n_tokens, bench->work.width};
    for (int i = 0; i < N_INPUTS; i++) {
        inputs_out[i] = shoal_empty(shape, 2, SHOAL_F32);
    }
    return inputs_out[0] && inputs_out[1] ? SHOAL_OK : shoal_scope_error();
}

void bench_compiled_write_inputs(shoal_tensor *const *inputs, int rank, int round)
{
    for (int i = 0; i < N_INPUTS; i++) {
        draw(inputs[i], (uint32_t)((round * MEASURE_MAX_RANKS + rank) * N_INPUTS + i), 1.0f);
    }
}

/* Making ------------------------------------------------------------------------------------------------- */

static shoal_status wrap(const struct bench_compiled *bench, shoal_module *root, shoal_group *group)
{
    const shoal_fully_shard_options shards = {.struct_size = sizeof(shards), .group = group};
    const shoal_ddp_options ddp = {.struct_size = sizeof(ddp), .group = group};
    return bench->wrapping == BENCH_COMPILED_SHARDS ? shoal_fully_shard(root, &shards)
                                                    : shoal_ddp(root, &ddp);
}

static shoal_status compile(enum bench_compiled_kind kind, shoal_world *world, struct bench_compiled_net *net)
{
    const shoal_compile_options options = {.struct_size = sizeof(options),
                                           .passes = kind == BENCH_COMPILED_PLAIN ? "" : NULL};
    bool is_eager = kind == BENCH_COMPILED_EAGER;
    return is_eager ? SHOAL_OK : shoal_compile(world, step, net->root, 1, &options, &net->compiled);
}

shoal_status bench_compiled_make(const struct bench_compiled *bench, enum bench_compiled_kind kind,
                                 shoal_world *world, struct bench_compiled_net *net)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof(definition), .type = "net", .forward = forward_root, .n_inputs = 1};
    shoal_group *group = shoal_world_group(world);
    const shoal_fully_shard_options shards = {.struct_size = sizeof(shards), .group = group};
    bool has_shards = bench->wrapping == BENCH_COMPILED_SHARDS && kind != BENCH_COMPILED_NONE;
    TRY(shoal_module_create(&definition, &net->root));
    for (int i = 0; i < bench->work.n_units; i++) {
        TRY(add_unit(net->root, i, bench->work.width, has_shards ? &shards : NULL));
    }
    if (kind != BENCH_COMPILED_NONE) {
        TRY(wrap(bench, net->root, group));
    }
    return compile(kind, world, net);
}

void bench_compiled_free(struct bench_compiled_net *net)
{
    shoal_compiled_free(net->compiled);
    shoal_module_unref(net->root);
}
