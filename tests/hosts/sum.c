/* SPDX-License-Identifier: MIT */
/* sum SECONDS: one rank, whose start-up may take this long; says what came of it. */
#include <stdio.h>
#include <stdlib.h>

#include "shoal/shoal.h"

static int fail(void)
{
    (void)fprintf(stderr, "sum: %s\n", shoal_error_text());
    return 1;
}

int main(int argc, char **argv)
{
    shoal_world *world;
    shoal_world_options options = SHOAL_WORLD_OPTIONS_INIT;
    float value = 1;
    options.startup_timeout_s = argc > 1 ? strtod(argv[1], NULL) : 0;
    if (shoal_world_open(&options, &world) != SHOAL_OK) {
        return fail();
    }
    if (shoal_group_all_reduce(shoal_world_group(world), &value, &value, 1, SHOAL_F32, SHOAL_SUM) !=
        SHOAL_OK) {
        return fail();
    }
    printf("rank %d of %d: sum %g\n", shoal_world_rank(world), shoal_world_n_ranks(world), (double)value);
    return shoal_world_close(world) == SHOAL_OK ? 0 : fail();
}
