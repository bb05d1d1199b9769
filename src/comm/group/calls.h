/* SPDX-License-Identifier: MIT */
/*
 * Calls that ranks make together before they know which ranks take part. For instance, which groups a compiled step
 * uses is found out by running it. A rank that gives up such a call before it has met the others cannot tell them on a
 * group. It tells all ranks of the world instead, by a message to their servers for which nobody waits. Ranks that make
 * the same call, on a group that has the rank as a member, then fail at once; all other ranks ignore the message.
 *
 * A call is identified by its number, which all ranks count alike, and by how often the rank has made it. The meetings
 * of a call are counted as well. A slow rank may still be in a meeting that another rank has left and that will succeed
 * for both: if the other rank gives up afterwards, the groups of that meeting must not fail. If ranks count
 * differently, they do not recognize the message, and wait until their deadline.
 */
#ifndef COMM_GROUP_CALLS_H
#define COMM_GROUP_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "shoal/group.h"
#include "shoal/world.h"

/* A call that is being made. */
struct world_call {
    shoal_world *world;
    uint32_t number;
    uint64_t round;             /* how often it was made, this time included */
    shoal_group *const *groups; /* on which this rank meets others now; entries may be NULL */
    size_t n_groups;
    uint32_t n_meetings; /* how many meetings were begun */
    uint32_t n_over;     /* how many of them are over */
    bool was_given_up;   /* another rank has given up the call */
    shoal_status status; /* its reason: SHOAL_ERR_MISMATCH, or SHOAL_ERR_PEER for any other */
    char text[ERROR_TEXT_BYTES];
    struct world_call *next;
    struct world_call *outer; /* the call that this thread made before, in which this one is nested */
};

/* Numbers the calls of a world: 1, 2, 3, ... */
uint32_t world_next_call(shoal_world *world);

/* Makes `call` the thread's current call until world_call_end. The caller has set world, number and round. Meets
   nobody yet. */
void world_call_begin(struct world_call *call);
void world_call_end(struct world_call *call);

/*
 * Call before the thread's current call, if it makes one, meets other ranks on these groups. They replace the groups of
 * the meeting before, which is over; the list stays the caller's. Until world_call_part, if a member gives up the call
 * without having completed this meeting, every operation on the groups that have this member fails with the member's
 * reason, on all members: SHOAL_ERR_MISMATCH if that was it, otherwise SHOAL_ERR_PEER. A failure of this function means
 * that a member has given up already: no group has failed, and the caller must not meet anybody.
 */
shoal_status world_call_meet(shoal_group *const *groups, size_t n_groups);
/* Ends the meeting. was_good: it succeeded, so a member that gives up the call later has completed it. */
void world_call_part(bool was_good);

/* Tells all other ranks that this rank gives up the call because of `status`, and waits for none of them. Keeps the
   thread's error text. */
void world_call_give_up(const struct world_call *call, shoal_status status, const char *text);

#endif
