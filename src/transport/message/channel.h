/* SPDX-License-Identifier: MIT */
/* A group's collectives over frames: docs/design/message.md. */
#ifndef MESSAGE_CHANNEL_H
#define MESSAGE_CHANNEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/blocks.h"
#include "transport/message/router.h"
#include "transport/transport.h"

/* Collectives whose contribution to each peer is at most this travel with the call. */
#define MESSAGE_SMALL_BYTES ((size_t)8 * 1024)

enum message_mode {
    MESSAGE_MODE_ORDERED = 0,
    MESSAGE_MODE_FAST = 1 /* SHOAL_REDUCE=fast, where it makes a difference */
};

struct message_channel {
    struct channel base;
    int rank;
    int n_ranks;
    uint32_t mode; /* how the owner of the channel reduces: compared with every call; names in calls.c */
    struct router *router;
    struct port *port;
    _Atomic int n_posted;    /* collectives that were posted and not finished */
    _Atomic int64_t look_ns; /* when finish looks for deaths again that nobody waits long enough to notice */
    /* When the deadline of a call was first found to have passed; 0 if it never was. */
    int64_t late_ns;
    uint32_t late_sequence;  /* of that call */
    struct frame **outgoing; /* n_ranks: of post and run */
    const void **sources;    /* n_ranks: of a reduction, or of counts, in finish and run */
    struct doorbell bell;
};

static inline int message_world_rank(const struct message_channel *channel, int rank)
{
    return channel->base.peers->world_ranks[rank];
}

/* await.c: waiting, and what ends it ---------------------------------------------------------------------- */

/* SHOAL_OK, or the channel's first reason, its own or the parent's. */
shoal_status message_failure(struct message_channel *channel);
/* SHOAL_OK while a member can still do its part. */
shoal_status message_check_member(struct message_channel *channel, int rank);
/* Whether members should be checked now: every WAIT_LIVENESS_NS, and when a deadline has passed. True is told once. */
bool message_must_look(struct message_channel *channel, int64_t deadline_ns);
/*
 * Whether the time of a call is over. When its deadline is first found to have passed, what lies in the network is taken,
 * and the answer is no: the caller looks again. A rank that was stopped finds so what came meanwhile. A caller that may
 * not wait gets the same answer until the wire's thread has had a moment for it.
 */
bool message_is_over(struct message_channel *channel, const struct collective *collective, bool may_wait);
/*
 * Until the bell has rung since `seen`, or the instant has passed; at most until it is time to look around again. Sleeps, or
 * spins for a moment where processors are free.
 */
void message_wait(struct message_channel *channel, uint32_t seen, int64_t until_ns);

/*
 * SHOAL_OK while messages can go to a rank of the world and come from it. A connection that was just cut still counts: it
 * often means a death, whose text says more.
 */
shoal_status message_check_connection(struct router *router, int world_rank);

/*
 * The memory of a call that has failed is the caller's again: what was lent to the wire is waited for, for a moment. If
 * a peer does not take it, because it is stopped, the wire is given up.
 */
void message_reclaim(struct message_channel *channel);

/* contribution.c ----------------------------------------------------------------------------------------- */

/* What one rank contributes to the result of another: nothing if `elements` is 0. */
struct contribution {
    enum block_side side;
    int block;
    size_t elements;
};

/* The contribution of `from` to `to`, as the sender sees it. */
struct contribution message_contribution(const struct collective *collective, int from, int to);

/* calls.c: what ranks call, compared before any result can be read ---------------------------------------- */

/* Whether a collective travels with its call. The same on all ranks whose calls are equal. */
bool message_is_small(const struct message_channel *channel, const struct collective *collective);
/* Sends the call, and what is small, to every member. Nothing was sent if it fails. */
shoal_status message_send_calls(struct message_channel *channel, const struct collective *collective);
bool message_have_all_called(struct message_channel *channel);
/* Until every member has called, or until_ns. On a timeout of the call the text names those who have not. */
shoal_status message_await_calls(struct message_channel *channel, const struct collective *collective,
                                 int64_t until_ns);
/* SHOAL_ERR_MISMATCH with both calls in full. All have called. */
shoal_status message_compare(struct message_channel *channel, const struct collective *collective);
/* What came with the call of a member, `bytes` expected; SHOAL_ERR_INTERNAL when it is not as long. */
shoal_status message_find_data(struct message_channel *channel, int rank, size_t bytes,
                               const char **data_out);
/* The calls of this collective have been read for the last time. */
void message_drop_calls(struct message_channel *channel);

/* move.c: how data moves ---------------------------------------------------------------------------------- */

/* Out of what came with the calls. */
shoal_status message_deliver(struct message_channel *channel, const struct collective *collective);
/* By rounds of data frames, after the calls were compared. */
shoal_status message_move(struct message_channel *channel, const struct collective *collective);
/* In a group of one. */
shoal_status message_run_alone(const struct collective *collective);

/* channel.c ------------------------------------------------------------------------------------------------ */

/*
 * Every member has called the same when it returns SHOAL_OK. is_finished: the collective was small, and has ended.
 * Otherwise its data has not moved yet.
 */
shoal_status message_meet(struct message_channel *channel, const struct collective *collective,
                          bool *is_finished_out);

/* A collective that failed has failed for all. What fails behind another has its reason. SHOAL_OK stays. */
shoal_status message_conclude(struct message_channel *channel, shoal_status status, int64_t deadline_ns);

/* In kinds.c. Returns the router that `open` of a transport over messages made; NULL if the transport is another
   one. */
struct router *message_router_of(const struct transport *transport, void *state);

/* channel.c: the table of a transport, without what kinds.c adds ------------------------------------------- */

extern const struct transport message_operations;

#endif
