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
struct lane_work;
struct work_hooks; /* comm/work.h */
struct part;

/* Copies what it is given: comm/part.h. NULL: no memory. */
struct lane *lane_create(const struct part *part);

/*
 * Ends everything unfinished with the channel's failure (the group is poisoned, or idle), joins the thread, and
 * disconnects the channel. `what` is what was closed, for error texts: "world" or "group".
 */
void lane_free(struct lane *lane, const char *what);

/*
 * Both take a collective whose pieces, counts and window pieces belong to the caller. lane_start copies what it needs
 * beyond the call. Neither validates. `hooks` are called at the end of the work; NULL: none.
 */
shoal_status lane_run(struct lane *lane, struct collective *collective);
shoal_status lane_start(struct lane *lane, const struct collective *collective,
                        const struct work_hooks *hooks, struct shoal_work **work_out);

/*
 * Makes a work that is issued repeatedly (comm/prepared.h), with copies of everything that `collective` points to. The
 * caller gets the reference. At first the work counts as ended and awaited. Returns NULL if there is no memory.
 */
struct lane_work *lane_prepare(struct lane *lane, const struct collective *collective);
struct shoal_work *lane_prepared_work(struct lane_work *work);
/* What it issues; the caller may change it, and what it points to, whenever the work has ended. */
struct collective *lane_prepared_call(struct lane_work *work);
/* lane_start of a prepared work, of which the caller has the only handle and has waited for the last issue. No allocation on a
   connected lane. A failure ends the work with it, or comes before anything and leaves the work as it was. */
shoal_status lane_issue_again(struct lane_work *work);

/*
 * Ends what this caller can end until then (0: only what is ready). Returns true when nothing is left and no thread is
 * inside the channel.
 */
bool lane_drain(struct lane *lane, int64_t until_ns);

uint64_t lane_sequence(struct lane *lane);
/* Collectives that have not ended. */
uint64_t lane_n_unfinished(struct lane *lane);

/* The lane's own, or that of the group's parent. */
shoal_status lane_failure(struct lane *lane);
/*
 * Every later call of this rank fails with the reason, and, if the lane is connected, so does every call of the others.
 * Never blocks.
 */
void lane_poison(struct lane *lane, shoal_status status, const char *text);

#endif
