/* SPDX-License-Identifier: MIT */
/* Ranks as threads of one process: for tests, and for programs that want no launcher. */
#include <stdio.h>

#include "shoal/shoal.h"

#define N_RANKS 3

/* One thread. What it returns, and what opening and closing its world return, comes out of run_threads. */
static shoal_status run_rank(shoal_world *world, void *context)
{
    int64_t *products = context;
    int rank = shoal_world_rank(world);
    int64_t value = rank + 1;
    return shoal_group_all_reduce(shoal_world_group(world), &value, &products[rank], 1, SHOAL_I64,
                                  SHOAL_PRODUCT);
}

int main(void)
{
    int64_t products[N_RANKS];
    if (shoal_world_run_threads(N_RANKS, run_rank, products) != SHOAL_OK) {
        (void)fprintf(stderr, "07_threads: %s\n", shoal_error_text());
        return 1;
    }
    for (int rank = 0; rank < N_RANKS; rank++) {
        printf("rank %d: %d ranks multiply to %d\n", rank, N_RANKS, (int)products[rank]);
    }
    return 0;
}
