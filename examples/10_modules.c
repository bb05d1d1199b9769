/* SPDX-License-Identifier: MIT */
/*
 * A network of modules, fully sharded: every rank keeps a part of each parameter, of its gradient and of what the
 * optimizer remembers, and trains on its part of the batch. The only lines about ranks are in shard() and in main().
 *
 *     shoal run --no-label -n 2 ./10_modules
 */
#include <math.h>
#include <shoal/shoal.h>
#include <shoal_nn/nn.h>
#include <shoal_nn/optim.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))
#define N_BLOCKS 3
#define WIDTH 48
#define ROWS 32
#define N_STEPS 60

/* Numbers between -1 and 1 that depend on nothing but the seed. */
static float draw(uint32_t *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return (float)(*seed >> 8) / 8388608.0F - 1.0F;
}

/* Modules ----------------------------------------------------------------------------------------------- */

/* What it makes dies with the call; an error in a chain of operations ends the call. */
static shoal_status forward_block(shoal_module *block, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *normal = shoal_nn_layer_norm(inputs[0], shoal_module_parameter(block, "scale"), NULL, 1e-5);
    shoal_tensor *hidden = shoal_nn_gelu(shoal_nn_linear(normal, shoal_module_parameter(block, "up"), NULL));
    outputs[0] = shoal_add(inputs[0], shoal_nn_linear(hidden, shoal_module_parameter(block, "down"), NULL));
    return SHOAL_OK;
}

static shoal_status forward_model(shoal_module *model, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *x = inputs[0];
    for (size_t i = 0; shoal_module_child_at(model, i, NULL) != NULL; i++) {
        x = shoal_module_call_one(shoal_module_child_at(model, i, NULL), x);
    }
    outputs[0] =
        shoal_nn_linear(x, shoal_module_parameter(model, "head"), shoal_module_parameter(model, "bias"));
    return SHOAL_OK;
}

static void add_parameter(shoal_module *module, const char *name, int64_t rows, int64_t columns, double fill)
{
    static uint32_t seed = 1; /* every rank draws the same */
    shoal_tensor *tensor = shoal_full((int64_t[]){rows, columns}, columns > 0 ? 2 : 1, fill, SHOAL_F32);
    float *values = shoal_mutable_data(tensor);
    for (int64_t i = 0; values && i < rows * columns; i++) {
        values[i] = draw(&seed) / sqrtf((float)columns);
    }
    DO(shoal_set_requires_grad(tensor, true));
    DO(shoal_module_add_parameter(module, name, tensor));
}

static shoal_module *make_model(void)
{
    shoal_module_definition definition = {
        .struct_size = sizeof(definition), .type = "model", .forward = forward_model, .n_inputs = 1};
    shoal_module *model;
    DO(shoal_module_create(&definition, &model));
    definition.type = "block";
    definition.forward = forward_block;
    for (int i = 0; i < N_BLOCKS; i++) {
        shoal_module *block;
        char name[16];
        (void)snprintf(name, sizeof(name), "block%d", i);
        DO(shoal_module_create(&definition, &block));
        add_parameter(block, "scale", WIDTH, 0, 1.0);
        add_parameter(block, "up", 4 * WIDTH, WIDTH, 0.0);
        add_parameter(block, "down", WIDTH, 4 * WIDTH, 0.0);
        DO(shoal_module_add_child(model, name, block));
        shoal_module_unref(block);
    }
    add_parameter(model, "head", 1, WIDTH, 0.0);
    add_parameter(model, "bias", 1, 0, 0.0);
    return model;
}

/* Each block is a unit: gathered while the one before computes. The head and the bias are what is left for the root. */
static void shard(shoal_module *model, shoal_group *group)
{
    shoal_fully_shard_options options = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    options.group = group;
    for (size_t i = 0; shoal_module_child_at(model, i, NULL) != NULL; i++) {
        DO(shoal_fully_shard(shoal_module_child_at(model, i, NULL), &options));
    }
    DO(shoal_fully_shard(model, &options));
}

/* Training ---------------------------------------------------------------------------------------------- */

/* The target is the sine of the sum of the first three inputs. */
static void make_batch(uint32_t seed, shoal_tensor *input, shoal_tensor *target)
{
    float *x = shoal_mutable_data(input);
    float *y = shoal_mutable_data(target);
    for (int row = 0; x && y && row < ROWS; row++) {
        for (int i = 0; i < WIDTH; i++) {
            x[row * WIDTH + i] = draw(&seed);
        }
        y[row] = sinf(x[row * WIDTH] + x[row * WIDTH + 1] + x[row * WIDTH + 2]);
    }
}

/* Everything of a step lives in its scope. */
static void step(shoal_module *model, shoal_nn_optimizer *optimizer, int number, shoal_group *group)
{
    DO(shoal_scope_begin());
    shoal_tensor *input = shoal_zeros((int64_t[]){ROWS, WIDTH}, 2, SHOAL_F32);
    shoal_tensor *target = shoal_zeros((int64_t[]){ROWS, 1}, 2, SHOAL_F32);
    make_batch((uint32_t)(number * 1009 + shoal_group_rank(group)), input, target);
    shoal_tensor *loss = shoal_nn_mse(shoal_module_call_one(model, input), target);
    DO(shoal_backward(loss, NULL));
    double norm;
    shoal_fsdp *fsdp;
    DO(shoal_fully_shard_context(model, &fsdp));
    DO(shoal_fsdp_clip_grad_norm(fsdp, 1.0, 2.0, false, &norm));
    DO(shoal_nn_optimizer_step(optimizer));
    DO(shoal_nn_optimizer_zero_grad(optimizer));
    const float *mean = shoal_data(shoal_all_reduce(shoal_detach(loss), SHOAL_AVG, group));
    if (mean && shoal_group_rank(group) == 0 && (number + 1) % (N_STEPS / 3) == 0) {
        printf("step %d: loss %.4f, norm of the gradient %.3f\n", number + 1, (double)*mean, norm);
    }
    DO(shoal_scope_end());
}

int main(void)
{
    shoal_world *world;
    DO(shoal_world_open(NULL, &world));
    shoal_group *group = shoal_world_group(world);
    DO(shoal_scope_begin());
    shoal_module *model = make_model();
    shard(model, group);

    size_t n_parameters;
    shoal_tensor *const *parameters = shoal_module_parameters(model, &n_parameters); /* shards, now */
    shoal_nn_adamw_options options = SHOAL_NN_ADAMW_OPTIONS_INIT;
    options.lr = 3e-3;
    shoal_nn_optimizer *optimizer;
    DO(shoal_nn_adamw_create(parameters, n_parameters, &options, &optimizer));
    for (int i = 0; i < N_STEPS; i++) {
        step(model, optimizer, i, group);
    }

    float head[WIDTH]; /* whole again, for whoever writes it to a file */
    DO(shoal_fsdp_gather(shoal_fully_shard_param(model, "head"), head, SHOAL_FSDP_ALL_RANKS));
    shoal_nn_optimizer_free(optimizer);
    shoal_module_unref(model);
    DO(shoal_scope_end());
    DO(shoal_world_close(world));
    return 0;
}
