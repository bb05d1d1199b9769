/* SPDX-License-Identifier: MIT */
/*
 * The collectives of one group, in order: docs/design/lanes.md.
 *
 *   lane_run     blocking: on an idle lane the caller runs it itself, without a work
 *   lane_start   returns at once with a work: posted if the channel takes it, otherwise queued for the lane's
 *                thread, or for a waiter that finds it next in line
 */
#ifndef COMM_LANE_H
#define COMM_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/work.h"
#include "transport/collective.h"

struct lane;
struct shoal_group;

struct lane *lane_create(struct shoal_group *group); /* NULL: no memory */

/*
 * Ends everything unfinished with the channel's failure (the group was poisoned, or is idle), joins the thread,
 * disconnects the channel.
 */
void lane_free(struct lane *lane);

/*
 * Both take a collective whose pieces, counts and window pieces are the caller's; lane_start copies what it needs
 * beyond the call. Neither validates.
 */
shoal_status lane_run(struct lane *lane, struct collective *collective);
shoal_status lane_start(struct lane *lane, const struct collective *collective, struct shoal_work **work_out);

/*
 * Ends what can be ended by this caller until then (0: what is ready). True when nothing is left and nobody is inside
 * the channel.
 */
bool lane_drain(struct lane *lane, int64_t until_ns);

uint64_t lane_sequence(struct lane *lane);
/* Collectives that have not ended. */
uint64_t lane_n_unfinished(struct lane *lane);

shoal_status lane_failure(struct lane *lane);
/*
 * Every later call of this rank fails with the reason, and so does every call of the others. A lane that is not
 * connected tries to, for a moment; if that fails, others hear of it only if they ask in another way.
 */
void lane_poison(struct lane *lane, shoal_status status, const char *text);

#endif
