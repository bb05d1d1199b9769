/* SPDX-License-Identifier: MIT */
/* How ranks find out together whether each of them could begin, so that all end at once if one could not. */
#ifndef COMMON_MEET_H
#define COMMON_MEET_H

#include "shoal/group.h"
#include "shoal/status.h"

/*
 * Collective: of a check that each rank makes for itself. `status` is this rank's, with its error text. If one rank has
 * failed all do, and *speaker_out is the first rank that has a reason, which it alone should say; otherwise it is -1. It
 * is also -1 if the ranks could not meet.
 */
shoal_status tool_meet(shoal_group *group, shoal_status status, int *speaker_out);

#endif
