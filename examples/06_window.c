/* SPDX-License-Identifier: MIT */
/*
 * Memory that ranks share. A window exists once for all ranks of a machine: to gather, each rank writes its part into
 * it, and all of them read the whole without a copy. Symmetric memory is one block per rank that all ranks can read and
 * write; collectives on it need no staging copy.
 *
 *     shoal run -n 4 ./06_window
 */
#include <stdio.h>

#include "shoal/shoal.h"

#define SHARD 50000

static float shard[SHARD];

/* Every rank writes its shard of the weights, as bf16, and reads all of them where they are. */
static shoal_status gather_weights(shoal_world *world, shoal_window *window, int step, int *n_right_out)
{
    size_t rank = (size_t)shoal_world_rank(world);
    const shoal_window_piece piece = {shard, SHARD, SHOAL_F32, SHOAL_BF16, rank * SHARD * sizeof(uint16_t)};
    for (int i = 0; i < SHARD; i++) {
        shard[i] = (float)(step + 1);
    }
    shoal_status status = shoal_window_gather(window, &piece, 1, (uint64_t)step);
    if (status != SHOAL_OK) {
        return status;
    }
    /* A bf16 is the upper half of an f32: 1.0 is 0x3f80, 2.0 is 0x4000. */
    const uint16_t *weights = shoal_window_data(window);
    *n_right_out = 0;
    for (size_t i = 0; i < shoal_window_bytes(window) / sizeof(uint16_t); i++) {
        *n_right_out += weights[i] == (step == 0 ? 0x3f80 : 0x4000);
    }
    /* This rank has read what it wanted: the next gather may write. */
    return shoal_window_release(window);
}

static shoal_status sum_symmetric(shoal_world *world, float *sum_out)
{
    shoal_symmetric *memory;
    shoal_status status = shoal_symmetric_create(shoal_world_group(world), SHARD * sizeof(float), &memory);
    if (status != SHOAL_OK) {
        return status;
    }
    float *values = shoal_symmetric_data(memory);
    values[SHARD - 1] = (float)shoal_world_rank(world);
    status = shoal_group_all_reduce(shoal_world_group(world), values, values, SHARD, SHOAL_F32, SHOAL_SUM);
    if (status != SHOAL_OK) {
        return status;
    }
    *sum_out = values[SHARD - 1];
    shoal_symmetric_free(memory);
    return SHOAL_OK;
}

static shoal_status show(shoal_world *world)
{
    size_t bytes = SHARD * (size_t)shoal_world_n_ranks(world) * sizeof(uint16_t);
    shoal_window *window;
    shoal_status status = shoal_window_create(shoal_world_group(world), bytes, &window);
    if (status != SHOAL_OK) {
        return status;
    }
    for (int step = 0; step < 2; step++) {
        int n_right;
        status = gather_weights(world, window, step, &n_right);
        if (status != SHOAL_OK) {
            return status;
        }
        printf("rank %d, step %d: %d weights are right\n", shoal_world_rank(world), step, n_right);
    }
    shoal_window_free(window);
    float sum;
    status = sum_symmetric(world, &sum);
    if (status == SHOAL_OK) {
        printf("rank %d: the sum of ranks is %g\n", shoal_world_rank(world), (double)sum);
    }
    return status;
}

int main(void)
{
    shoal_world *world;
    if (shoal_world_open(NULL, &world) != SHOAL_OK || show(world) != SHOAL_OK ||
        shoal_world_close(world) != SHOAL_OK) {
        (void)fprintf(stderr, "06_window: %s\n", shoal_error_text());
        return 1;
    }
    return 0;
}
