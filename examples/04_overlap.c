/* SPDX-License-Identifier: MIT */
/*
 * Overlaps communication with computation: the gradients of one layer are averaged while those of the next are
 * computed. A work is an operation that was started; waiting for it returns its status.
 *
 *     shoal run -n 3 ./04_overlap
 */
#include <stdio.h>

#include "shoal/shoal.h"

#define N_LAYERS 3
#define N_WEIGHTS 100000

static float gradients[N_LAYERS][N_WEIGHTS];

/* Stands for a backward pass: every gradient of layer k on rank r is k + r. */
static void compute(int layer, int rank)
{
    for (int i = 0; i < N_WEIGHTS; i++) {
        gradients[layer][i] = (float)(layer + rank);
    }
}

static shoal_status show(shoal_world *world)
{
    shoal_group *group = shoal_world_group(world);
    shoal_work *works[N_LAYERS];
    for (int layer = N_LAYERS - 1; layer >= 0; layer--) {
        compute(layer, shoal_world_rank(world));
        /* Returns at once. The buffer belongs to the operation until it has ended. */
        shoal_status status = shoal_group_all_reduce_start(group, gradients[layer], gradients[layer],
                                                           N_WEIGHTS, SHOAL_F32, SHOAL_AVG, &works[layer]);
        if (status != SHOAL_OK) {
            return status;
        }
    }
    for (int layer = N_LAYERS - 1; layer >= 0; layer--) {
        shoal_status status = shoal_work_wait(works[layer], -1);
        if (status != SHOAL_OK) {
            return status;
        }
        shoal_work_free(works[layer]);
    }
    printf("rank %d: averages %g %g %g\n", shoal_world_rank(world), (double)gradients[0][0],
           (double)gradients[1][0], (double)gradients[2][N_WEIGHTS - 1]);
    return SHOAL_OK;
}

int main(void)
{
    shoal_world *world;
    if (shoal_world_open(NULL, &world) != SHOAL_OK || show(world) != SHOAL_OK ||
        shoal_world_close(world) != SHOAL_OK) {
        (void)fprintf(stderr, "04_overlap: %s\n", shoal_error_text());
        return 1;
    }
    return 0;
}
