/* SPDX-License-Identifier: MIT */
/*
 * Calls that ranks make together before they know with whom: which groups a compiled step uses is found out by running it. A rank
 * that gives such a call up, before it has met the others, cannot meet them on a group to say so. It tells all ranks of the world
 * instead, by a message to their servers that nobody waits for. Those who make the same call, and have it on a group with that rank,
 * fail at once; for all others it means nothing.
 *
 * Calls are known by a number, which ranks count alike, and by how often the rank has made them; meetings of a call are counted, too. A
 * rank that is slow may still be in a meeting that another one has left, and which will end well for both: what that one gives up
 * afterwards must not fail the groups of the meeting. Ranks that count differently are not told, and wait for their deadline.
 */
#ifndef COMM_CALLS_H
#define COMM_CALLS_H

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
    shoal_group *const *groups; /* on which others are met now; NULL among them are none */
    size_t n_groups;
    uint32_t n_meetings;         /* that were begun, */
    uint32_t n_over;             /* and that ended well */
    bool was_given_up;           /* by another rank; */
    char text[ERROR_TEXT_BYTES]; /* why */
    struct world_call *next;
    struct world_call *outer; /* of the thread */
};

/* 1, 2, 3, ... in each world. */
uint32_t world_next_call(shoal_world *world);

/* The thread's call from now on, until it ends; world, number and round are set. Meets nobody yet. */
void world_call_begin(struct world_call *call);
void world_call_end(struct world_call *call);

/*
 * The thread's call, if it makes one, is about to meet others on these groups, in place of those before, with which it is done; the
 * list is the caller's. Until world_call_part: if one of the members gives the call up, and not after a meeting like this one, every operation on the groups that have it fails with SHOAL_ERR_PEER
 * and its reason, on all members. Not SHOAL_OK: one has given up already; then no group has failed, and nobody is to be met.
 */
shoal_status world_call_meet(shoal_group *const *groups, size_t n_groups);
/* Whether the meeting was a good one: who gives the call up later has met the others there. */
void world_call_part(bool was_good);

/* Tells the other ranks, and waits for none of them. Leaves the thread's error text as it is. */
void world_call_give_up(const struct world_call *call, const char *text);

#endif
