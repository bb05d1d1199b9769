/* SPDX-License-Identifier: MIT */
/*
 * A mesh arranges ranks in rows and columns, each of which is a group. Here there are two rows (one, if the number of
 * ranks is odd), and sums along rows and columns.
 *
 *     shoal run -n 4 ./03_mesh
 */
#include <stdio.h>

#include "shoal/shoal.h"

/* The sum of the world ranks in a group. */
static shoal_status sum_ranks(shoal_world *world, shoal_group *group, int64_t *sum_out)
{
    int64_t rank = shoal_world_rank(world);
    return shoal_group_all_reduce(group, &rank, sum_out, 1, SHOAL_I64, SHOAL_SUM);
}

static shoal_status show(shoal_world *world)
{
    int n_ranks = shoal_world_n_ranks(world);
    int n_rows = n_ranks % 2 == 0 ? 2 : 1;
    int shape[] = {n_rows, n_ranks / n_rows};
    const char *names[] = {"down", "across"};
    shoal_mesh *mesh;
    shoal_status status = shoal_mesh_create(world, "cpu", NULL, shape, 2, names, &mesh);
    if (status != SHOAL_OK) {
        return status;
    }
    /* The group of a dimension holds the ranks that lie along it: those across are a row. */
    int64_t row_sum;
    status = sum_ranks(world, shoal_mesh_group_by_name(mesh, "across"), &row_sum);
    if (status != SHOAL_OK) {
        return status;
    }
    int64_t column_sum;
    status = sum_ranks(world, shoal_mesh_group_by_name(mesh, "down"), &column_sum);
    if (status != SHOAL_OK) {
        return status;
    }
    int place[2] = {0, 0};
    (void)shoal_mesh_coordinate(mesh, place);
    printf("rank %d at (%d, %d): its row sums to %d, its column to %d\n", shoal_world_rank(world), place[0],
           place[1], (int)row_sum, (int)column_sum);
    shoal_mesh_free(mesh);
    return SHOAL_OK;
}

int main(void)
{
    shoal_world *world;
    if (shoal_world_open(NULL, &world) != SHOAL_OK || show(world) != SHOAL_OK ||
        shoal_world_close(world) != SHOAL_OK) {
        (void)fprintf(stderr, "03_mesh: %s\n", shoal_error_text());
        return 1;
    }
    return 0;
}
