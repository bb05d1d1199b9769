/* SPDX-License-Identifier: MIT */
/*
 * Whole parameters are gathered as int8, with a scale for each row: a quarter of the bytes of f32. Ranks keep, update
 * and save f32; only what is gathered is rounded. The two functions below are the extension, and main() sets it for
 * the weights of all layers.
 *
 *     shoal run --no-label -n 2 ./17_int8_gather
 */
#include <math.h>
#include <shoal/shoal.h>
#include <shoal_nn/nn.h>
#include <shoal_nn/optim.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))
#define N_LAYERS 2
#define WIDTH 64
#define BATCH 32
#define N_STEPS 60

/* The extension ----------------------------------------------------------------------------------------- */

/* This rank's rows: codes are -127 ... 127, and the largest number of a row is 127 times its scale. */
static shoal_status encode(void *context, const shoal_gather_rows *rows, const void *shard,
                           void *const *buffers)
{
    const float *values = shard;
    int8_t *codes = buffers[0];
    float *scales = buffers[1];
    (void)context;
    for (int64_t row = 0; row < rows->count; row++) {
        float largest = 0;
        for (size_t i = 0; i < rows->row_count; i++) {
            largest = fmaxf(largest, fabsf(values[i]));
        }
        scales[row] = largest / 127;
        for (size_t i = 0; i < rows->row_count; i++) {
            *codes++ = (int8_t)(largest > 0 ? rintf(values[i] / scales[row]) : 0);
        }
        values += rows->row_count;
    }
    return SHOAL_OK;
}

/* The rows of one rank, on one of the ranks of each host. It may run on another thread. */
static shoal_status decode(void *context, const shoal_gather_rows *rows, const void *const *buffers,
                           void *out)
{
    const int8_t *codes = buffers[0];
    const float *scales = buffers[1];
    float *values = out;
    (void)context;
    for (int64_t row = 0; row < rows->count; row++) {
        for (size_t i = 0; i < rows->row_count; i++) {
            *values++ = (float)*codes++ * scales[row];
        }
    }
    return SHOAL_OK;
}

/* The model --------------------------------------------------------------------------------------------- */

/* Numbers between -1 and 1 that depend on nothing but the seed. */
static shoal_tensor *draw(uint32_t seed, int64_t rows, int64_t columns, float size)
{
    shoal_tensor *tensor = shoal_empty((int64_t[]){rows, columns}, 2, SHOAL_F32);
    float *data = tensor ? shoal_mutable_data(tensor) : NULL;
    for (int64_t i = 0; data && i < rows * columns; i++) {
        seed = seed * 1664525U + 1013904223U;
        data[i] = size * ((float)(seed >> 8) / 8388608.0F - 1.0F);
    }
    return tensor;
}

static shoal_status forward_layer(shoal_module *layer, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_nn_gelu(shoal_nn_linear(inputs[0], shoal_module_parameter(layer, "weight"), NULL));
    return SHOAL_OK;
}

static shoal_status forward_model(shoal_module *model, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *x = inputs[0];
    (void)n_inputs;
    (void)n_outputs;
    for (size_t i = 0; i < N_LAYERS; i++) {
        x = shoal_module_call_one(shoal_module_child_at(model, i, NULL), x);
    }
    outputs[0] = shoal_nn_linear(x, shoal_module_parameter(model, "head"), NULL);
    return SHOAL_OK;
}

static shoal_module *make_module(const char *type, shoal_module_forward forward, const char *name,
                                 shoal_tensor *weight)
{
    shoal_module *module;
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = type, .forward = forward};
    DO(shoal_module_create(&definition, &module));
    DO(shoal_set_requires_grad(weight, true));
    DO(shoal_module_add_parameter(module, name, weight));
    return module;
}

int main(void)
{
    const shoal_gather_buffer buffers[] = {{SHOAL_I8, WIDTH}, {SHOAL_F32, 1}}; /* of each row */
    const shoal_gather_extension int8 = {.struct_size = sizeof int8,
                                         .name = "int8 with a scale for each row",
                                         .is_by_rows = true,
                                         .n_buffers = 2,
                                         .buffers = buffers,
                                         .encode = encode,
                                         .decode = decode};
    shoal_world *world;
    shoal_nn_optimizer *adamw;
    shoal_nn_adamw_options how = SHOAL_NN_ADAMW_OPTIONS_INIT;
    how.lr = 0.01;
    DO(shoal_world_open(NULL, &world));
    DO(shoal_scope_begin());
    shoal_fully_shard_options options = {.struct_size = sizeof options, .group = shoal_world_group(world)};
    shoal_module *model = make_module("model", forward_model, "head", draw(9, 1, WIDTH, 0.1F));
    for (int i = 0; i < N_LAYERS; i++) {
        char name[8];
        shoal_tensor *weight = draw((uint32_t)i + 1, WIDTH, WIDTH, 0.25F);
        shoal_module *layer = make_module("layer", forward_layer, "weight", weight);
        (void)snprintf(name, sizeof name, "%d", i);
        DO(shoal_module_add_child(model, name, layer));
        DO(shoal_fully_shard(layer, &options));
        DO(shoal_fsdp_set_gather_extension(shoal_fully_shard_param(layer, "weight"), &int8));
        shoal_module_unref(layer);
    }
    DO(shoal_fully_shard(model, &options));
    DO(shoal_nn_adamw_create_for(model, &how, NULL, 0, &adamw)); /* over this rank's f32 shards */
    for (int step = 1; step <= N_STEPS; step++) {
        DO(shoal_scope_begin());
        uint32_t seed = (uint32_t)(1000 * step + shoal_world_rank(world)); /* each rank has rows of its own */
        shoal_tensor *x = draw(seed, BATCH, WIDTH, 1.0F);
        shoal_tensor *y = shoal_sum(x, (int64_t[]){1}, 1, true);
        shoal_tensor *error = shoal_sub(shoal_module_call_one(model, x), y);
        shoal_tensor *loss = shoal_mean(shoal_mul(error, error), NULL, 0, false);
        DO(shoal_backward(loss, NULL));
        DO(shoal_nn_optimizer_step(adamw));
        DO(shoal_nn_optimizer_zero_grad(adamw));
        if (step % 20 == 0 && shoal_world_rank(world) == 0) {
            printf("step %d: loss %.2f\n", step, (double)*(const float *)shoal_data(loss));
        }
        DO(shoal_scope_end());
    }
    shoal_nn_optimizer_free(adamw);
    shoal_module_unref(model);
    DO(shoal_scope_end());
    DO(shoal_world_close(world));
    return 0;
}
