/* SPDX-License-Identifier: MIT */
/*
 * A multilayer perceptron with its own kernels, as two programs: mlp_single.c is one process; mlp_fsdp.c is several
 * ranks, each with a part of the batch and of the weights. Both end with the same bits, and only a few lines differ.
 *
 *     ./mlp_single 3               three parts of the batch, their gradients added up in order
 *     shoal run -n 3 ./mlp_fsdp    one part for each rank
 */
#include <math.h>
#include <shoal/shoal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))
#define N_LAYERS 3
#define N_STEPS 30
#define BATCH 16
#define WIDEST 37
#define MAX_PARTS 16
#define ROOM (WIDEST * WIDEST) /* for the weights of a layer */

static const int sizes[N_LAYERS + 1] = {5, WIDEST, 24, 3};

static float activations[N_LAYERS + 1][BATCH][WIDEST]; /* input of every layer, and the result */
static float upstream[N_LAYERS + 1][BATCH][WIDEST];    /* the gradient of each */

/* Weights of a layer. */
static int64_t count(int layer)
{
    return (int64_t)sizes[layer] * sizes[layer + 1];
}

/* Numbers between -1 and 1 that depend on nothing but the seed. */
static float draw(uint32_t *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return (float)(*seed >> 8) / 8388608.0F - 1.0F;
}

static void make_batch(int step, int part)
{
    uint32_t seed = (uint32_t)(step * 1000 + part);
    for (int b = 0; b < BATCH; b++) {
        for (int i = 0; i < sizes[0]; i++) {
            activations[0][b][i] = draw(&seed);
        }
    }
}

static void forward(int layer, const float *weights)
{
    for (int b = 0; b < BATCH; b++) {
        for (int o = 0; o < sizes[layer + 1]; o++) {
            float sum = 0.0F;
            for (int i = 0; i < sizes[layer]; i++) {
                sum += weights[o * sizes[layer] + i] * activations[layer][b][i];
            }
            activations[layer + 1][b][o] = layer + 1 < N_LAYERS ? tanhf(sum) : sum;
        }
    }
}

/* The target is the sine of the sum of the inputs, three times over. */
static float measure_loss(void)
{
    float loss = 0.0F;
    for (int b = 0; b < BATCH; b++) {
        float sum = 0.0F;
        for (int i = 0; i < sizes[0]; i++) {
            sum += activations[0][b][i];
        }
        for (int o = 0; o < sizes[N_LAYERS]; o++) {
            float error = activations[N_LAYERS][b][o] - sinf(sum * (float)(o + 1));
            upstream[N_LAYERS][b][o] = 2.0F * error / (float)(BATCH * sizes[N_LAYERS]);
            loss += error * error / (float)(BATCH * sizes[N_LAYERS]);
        }
    }
    return loss;
}

/* Adds to the gradient. */
static void backward(int layer, const float *weights, float *gradient)
{
    memset(upstream[layer], 0, sizeof upstream[layer]);
    for (int b = 0; b < BATCH; b++) {
        for (int o = 0; o < sizes[layer + 1]; o++) {
            float y = activations[layer + 1][b][o];
            float g = upstream[layer + 1][b][o] * (layer + 1 < N_LAYERS ? 1.0F - y * y : 1.0F);
            for (int i = 0; i < sizes[layer]; i++) {
                gradient[o * sizes[layer] + i] += g * activations[layer][b][i];
                upstream[layer][b][i] += g * weights[o * sizes[layer] + i];
            }
        }
    }
}

/* With the mean of the gradients of all parts, which are zero afterwards. */
static void update(float *weights, float (*gradients)[ROOM], int n_parts, size_t n_weights)
{
    for (size_t i = 0; i < n_weights; i++) {
        float sum = gradients[0][i];
        for (int part = 1; part < n_parts; part++) {
            sum += gradients[part][i];
        }
        weights[i] -= 0.1F * (sum / (float)n_parts);
        for (int part = 0; part < n_parts; part++) {
            gradients[part][i] = 0.0F;
        }
    }
}

static uint32_t hash(const float *values, int64_t n_values)
{
    const unsigned char *bytes = (const unsigned char *)values;
    uint32_t sum = 2166136261U;
    for (size_t i = 0; i < (size_t)n_values * sizeof *values; i++) {
        sum = (sum ^ bytes[i]) * 16777619U;
    }
    return sum;
}

static float *start(int layer)
{
    static float values[ROOM];
    uint32_t seed = (uint32_t)layer;
    for (int64_t i = 0; i < count(layer); i++) {
        values[i] = draw(&seed) / sqrtf((float)sizes[layer]);
    }
    return values;
}

static shoal_fsdp *f; /* layer k is unit k, and has parameter k */

static float run_part(int step, int part)
{
    make_batch(step, part);
    for (int layer = 0; layer < N_LAYERS; layer++) {
        DO(shoal_fsdp_pre_forward(f, layer));
        forward(layer, shoal_fsdp_full_param(f, layer));
        DO(shoal_fsdp_post_forward(f, layer));
    }
    float loss = measure_loss();
    for (int layer = N_LAYERS - 1; layer >= 0; layer--) {
        DO(shoal_fsdp_pre_backward(f, layer));
        backward(layer, shoal_fsdp_full_param(f, layer), shoal_fsdp_grad(f, layer));
        DO(shoal_fsdp_post_backward(f, layer));
    }
    DO(shoal_fsdp_end_backward(f));
    return loss;
}

int main(int n_arguments, char **arguments)
{
    static float whole[ROOM];
    int n_parts = n_arguments > 1 ? (int)strtol(arguments[1], NULL, 10) : 2;
    float loss = 0.0F;
    if (n_parts < 1 || n_parts > MAX_PARTS) {
        return 2;
    }
    shoal_world *world;
    DO(shoal_world_open(NULL, &world));
    n_parts = shoal_world_n_ranks(world);
    DO(shoal_fsdp_create(shoal_world_group(world), NULL, &f));
    for (int layer = 0; layer < N_LAYERS; layer++) {
        DO(shoal_fsdp_add_param(f, layer, "w", SHOAL_F32, 1, (int64_t[]){count(layer)}, start(layer), NULL));
    }
    for (int step = 0; step < N_STEPS; step++) {
        for (int part = 0; part < n_parts; part++) {
            loss = part == shoal_world_rank(world) ? run_part(step, part) : loss;
        }
        for (int layer = 0; layer < N_LAYERS; layer++) {
            shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
            DO(shoal_fsdp_update_shard(f, layer, &shard));
            update(shard.data, shard.grad, 1, shard.count);
        }
        DO(shoal_fsdp_zero_grad(f));
    }
    for (int layer = 0; layer < N_LAYERS; layer++) {
        DO(shoal_fsdp_gather(shoal_fsdp_param_of(f, layer), whole, SHOAL_FSDP_ALL_RANKS));
        printf("layer %d: %08x\n", layer, (unsigned)hash(whole, count(layer)));
    }
    shoal_fsdp_free(f);
    DO(shoal_world_close(world));
    printf("loss %s\n", loss < 0.5F ? "fell" : "did not fall");
    return 0;
}
