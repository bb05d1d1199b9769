/* SPDX-License-Identifier: MIT */
/*
 * The collectives of one group, in order: docs/design/lanes.md.
 *
 *   lane_run     blocking: on an idle lane the caller runs it itself, without a work
 *   lane_start   returns at once with a work: posted if the channel takes it, otherwise queued for the lane's
 *                thread, or for a waiter that finds it next in line
 */
#ifndef COMM_LANE_LANE_H
#define COMM_LANE_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/work.h"
#include "transport/collective.h"

struct lane;
struct lane_work;
struct work_hooks;  /* comm/lane/work.h */
struct work_search; /* comm/lane/uses.h */
struct part;

/* Keeps a copy of `part` (comm/lane/part.h). Returns NULL if memory runs out. */
struct lane *lane_create(const struct part *part);

/*
 * Ends everything unfinished with the channel's failure (the group is poisoned, or idle), joins the thread, and
 * disconnects the channel. `what` has happened, for error texts: "world was closed". If something is unfinished, peers
 * get the same reason, or SHOAL_ERR_PEER with the text `told`, if that is not NULL.
 */
void lane_free(struct lane *lane, const char *what, const char *told);

/* Whether a thread is in a blocking call. */
bool lane_is_in_call(struct lane *lane);

/*
 * Both take a collective whose pieces, counts and window pieces belong to the caller. lane_start copies what it needs
 * beyond the call. Neither validates. `hooks` are called at the end of the work; they may be NULL.
 */
shoal_status lane_run(struct lane *lane, struct collective *collective);
shoal_status lane_start(struct lane *lane, const struct collective *collective,
                        const struct work_hooks *hooks, struct shoal_work **work_out);

/*
 * Makes a work that is issued repeatedly (comm/call/prepared.h), with copies of everything that `collective` points to. The
 * caller gets the reference. At first the work counts as ended and awaited. Returns NULL if there is no memory.
 */
struct lane_work *lane_prepare(struct lane *lane, const struct collective *collective);
struct shoal_work *lane_prepared_work(struct lane_work *work);
/* The collective that a prepared work issues. The caller may change it, and what it points to, while the work is
   ended. */
struct collective *lane_prepared_call(struct lane_work *work);
/*
 * Issues a prepared work again. The caller has its only handle and has waited for the last issue. Allocates nothing on
 * a connected lane. On failure the work has ended with that failure, or nothing was issued and the work is as it was
 * before.
 */
shoal_status lane_issue_again(struct lane_work *work);

/*
 * Ends what this caller can end until then (if that is 0, only what is ready). Returns true when nothing is left and no
 * thread is inside the channel.
 */
bool lane_drain(struct lane *lane, int64_t until_ns);

/* Finds a work of the lane that has not ended, with a buffer that the search is for. Gives a reference; NULL if there is
   none. */
struct shoal_work *lane_find_work(struct lane *lane, const struct work_search *search);

uint64_t lane_sequence(struct lane *lane);
/* How many collectives have not ended. */
uint64_t lane_n_unfinished(struct lane *lane);

/* SHOAL_OK, or why the lane or the group's parent has failed. */
shoal_status lane_failure(struct lane *lane);
/*
 * Makes every later call of this rank fail with the reason and, if the lane is connected, every call of the others too.
 * Never blocks.
 */
void lane_poison(struct lane *lane, shoal_status status, const char *text);

#endif
