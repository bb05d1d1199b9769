/* SPDX-License-Identifier: MIT */
/*
 * Point to point: the ranks form a ring, and each passes on to its right neighbour what it receives from its left one.
 * shoal_group_transfer posts all sends and receives before it waits, so their order does not matter.
 *
 *     shoal run -n 4 ./05_ring
 */
#include <stdio.h>

#include "shoal/shoal.h"

#define MAX_LINE 256

static shoal_status show(shoal_world *world)
{
    int rank = shoal_world_rank(world);
    int n_ranks = shoal_world_n_ranks(world);
    int32_t said = rank;
    char line[MAX_LINE] = "";
    size_t used = 0;
    for (int step = 1; step < n_ranks; step++) {
        int32_t heard;
        const shoal_transfer transfers[] = {
            {SHOAL_SEND, &said, 1, SHOAL_I32, (rank + 1) % n_ranks, 0},
            {SHOAL_RECV, &heard, 1, SHOAL_I32, (rank + n_ranks - 1) % n_ranks, 0},
        };
        shoal_status status = shoal_group_transfer(shoal_world_group(world), transfers, 2);
        if (status != SHOAL_OK) {
            return status;
        }
        if (used < sizeof(line)) {
            used += (size_t)snprintf(line + used, sizeof(line) - used, " %d", (int)heard);
        }
        said = heard;
    }
    printf("rank %d of %d heard:%s\n", rank, n_ranks, line);
    return SHOAL_OK;
}

int main(void)
{
    shoal_world *world;
    if (shoal_world_open(NULL, &world) != SHOAL_OK || show(world) != SHOAL_OK ||
        shoal_world_close(world) != SHOAL_OK) {
        (void)fprintf(stderr, "05_ring: %s\n", shoal_error_text());
        return 1;
    }
    return 0;
}
