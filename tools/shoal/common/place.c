/* SPDX-License-Identifier: MIT */
/* Whether this process is alone or one of a launcher's ranks, by the rows of bootstrap/meet/launchers.def. */
#include "common/place.h"
#include "common/tool.h"

#include "bootstrap/meet/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tool_place_read(struct tool_place *place_out)
{
    static struct environment environment;
    if (environment_read(&environment) != SHOAL_OK) {
        fprintf(stderr, "%s: %s\n", tool_name(), shoal_error_text());
        return false;
    }
    bool is_shoal = strcmp(environment.launcher, "SHOAL") == 0; /* its variables, perhaps set by hand */
    const char *key = getenv("SHOAL_KEY");
    const char *again = getenv(TOOL_PLACE_AGAIN);
    *place_out = (struct tool_place){.is_launched = strcmp(environment.launcher, "alone") != 0,
                                     .is_again = is_shoal && key && again && strcmp(key, again) == 0,
                                     .launcher = is_shoal ? "shoal run" : environment.launcher,
                                     .rank = environment.rank,
                                     .n_ranks = environment.n_ranks};
    return true;
}

bool tool_place_may_start(const struct tool_place *place, const char *option)
{
    bool is_wrong = option && place->is_launched && !place->is_again;
    if (is_wrong) {
        (void)tool_refuse(
            "%s is about ranks that the command starts itself, but %s has started %d: leave it out", option,
            place->launcher, place->n_ranks);
    }
    return !is_wrong;
}

bool tool_place_has_transport(const struct tool_place *place, const char *transport)
{
    bool is_mpi = transport && (strcmp(transport, "mpi") == 0 || strncmp(transport, "mpi_", 4) == 0);
    bool may_be = place->is_launched &&
                  (environment_starts_mpi(place->launcher) || strcmp(place->launcher, "Slurm") == 0);
    if (is_mpi && !may_be) {
        (void)tool_refuse("--transport %s needs ranks that an mpirun has started, as mpirun -n 2 %s ...; %s",
                          transport, tool_name(),
                          place->is_launched ? "these were started by another launcher"
                                             : "this command was started without one");
    }
    return !is_mpi || may_be;
}
