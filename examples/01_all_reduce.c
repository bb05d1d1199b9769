/* SPDX-License-Identifier: MIT */
/*
 * Ranks add their numbers up. The same program runs alone and under every launcher:
 *
 *     ./01_all_reduce                          shoal run -n 4 ./01_all_reduce
 *     mpirun -n 4 ./01_all_reduce              torchrun --no_python --nproc_per_node 4 ./01_all_reduce
 */
#include <stdio.h>

#include "shoal/shoal.h"

static int fail(void)
{
    (void)fprintf(stderr, "01_all_reduce: %s\n", shoal_error_text());
    return 1;
}

int main(void)
{
    shoal_world *world;
    if (shoal_world_open(NULL, &world) != SHOAL_OK) {
        return fail();
    }
    int rank = shoal_world_rank(world);
    float values[] = {1.0f, (float)rank, (float)(rank * rank)};
    if (shoal_group_all_reduce(shoal_world_group(world), values, values, 3, SHOAL_F32, SHOAL_SUM) !=
        SHOAL_OK) {
        return fail();
    }
    printf("rank %d of %d: sums %g %g %g\n", rank, shoal_world_n_ranks(world), (double)values[0],
           (double)values[1], (double)values[2]);
    return shoal_world_close(world) == SHOAL_OK ? 0 : fail();
}
