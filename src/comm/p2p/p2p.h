/* SPDX-License-Identifier: MIT */
/*
 * Point to point on a group: docs/design/p2p.md. It does not use the group's lane. There is a stream per (source,
 * destination, tag), and a thread that waits, or the group's point-to-point thread, moves data on all streams.
 *
 *   comm/call/p2p.c      the public calls and their checks
 *   comm/p2p/engine.c    posting, waiting, closing; which thread moves data
 *   comm/p2p/move.c      moving messages, ending operations
 *   comm/p2p/check.c     deadlines, and members that are gone
 *   comm/p2p/pending.c   operations in order
 *   comm/p2p/text.c      error texts
 *   comm/p2p/streams.c   finding and opening streams
 */
#ifndef COMM_P2P_P2P_H
#define COMM_P2P_P2P_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/group.h"
#include "shoal/status.h"

struct p2p;
struct shoal_work;
struct work_search; /* comm/lane/uses.h */

/*
 * Ends everything unfinished here with SHOAL_ERR_CANCELLED and joins the thread. Other threads that still wait return
 * after that. NULL is allowed. `what` has happened, for error texts: "world was closed".
 */
void p2p_free(struct p2p *p2p, const char *what);

/* Whether a send that was started still waits for its peer; the group's thread goes on with it. NULL is allowed. */
bool p2p_is_sending(struct p2p *p2p);

/*
 * Ends all unfinished sends to peers with SHOAL_ERR_CANCELLED, because nobody receives them and `what` happens. NULL is
 * allowed.
 */
void p2p_cancel_sends(struct p2p *p2p, const char *what);

/* Ends point to point on all members of the group, for good; the first reason stays. NULL is allowed. */
void p2p_poison(struct p2p *p2p, shoal_status status, const char *text);

/* One side of a stream as the flight record shows it. */
struct p2p_stream_state {
    shoal_direction direction;
    int peer; /* in the group; SHOAL_ANY_RANK: receives for which no message has come yet */
    int tag;
    uint32_t n_messages; /* posted so far */
    size_t n_pending;
    /* Of the first that is pending. */
    size_t count;
    int64_t start_ns;
    shoal_dtype dtype;
    shoal_status failure;
};

/*
 * Copies the states of the streams that this rank has used, at most `capacity` of them, those with pending messages
 * first. Returns how many streams there are. NULL is allowed, if point to point was never used: it has 0 streams.
 */
size_t p2p_list_streams(struct p2p *p2p, struct p2p_stream_state *states, size_t capacity);

/* Finds a started operation that has not ended, with a buffer that the search is for. Gives a reference to its work; NULL
   if there is none. NULL is allowed. */
struct shoal_work *p2p_find_work(struct p2p *p2p, const struct work_search *search);

/* SHOAL_OK, or why point to point fails on the whole group. NULL is allowed. */
shoal_status p2p_failure(struct p2p *p2p);

#endif
