/* SPDX-License-Identifier: MIT */
/* Where a command runs: alone, or as one of the ranks that a launcher started. All commands ask here. */
#ifndef COMMON_PLACE_H
#define COMMON_PLACE_H

#include <stdbool.h>

struct tool_place {
    bool is_launched;
    bool is_again;        /* by this command, which gives its ranks the words that it was given */
    const char *launcher; /* "Open MPI"; "alone" if nothing has started ranks */
    int rank;             /* 0 if alone */
    int n_ranks;          /* 1 if alone */
};

/* Returns false, after a message, if the launcher's variables are incomplete or wrong. */
bool tool_place_read(struct tool_place *place_out);

/* The variable of ranks that a command has started as itself: the SHOAL_KEY of the run. */
#define TOOL_PLACE_AGAIN "_SHOAL_AGAIN"

/* Whether `option` ("--ranks"), which is about ranks that the command starts itself, may stand at this place; NULL if it was
   not given. If not, the first rank says why. */
bool tool_place_may_start(const struct tool_place *place, const char *option);

/* Whether ranks at this place can have the transport that --transport names; NULL: any. MPI carries data between ranks that
   its own mpirun started, or srun with a PMI that it understands. If not, the first rank says why. */
bool tool_place_has_transport(const struct tool_place *place, const char *transport);

#endif
