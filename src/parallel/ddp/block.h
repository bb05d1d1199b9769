/* SPDX-License-Identifier: MIT */
/*
 * The lane that buckets go over, and the block of symmetric memory that they are ranges of.
 *
 * A backward that fails on one rank may leave collectives that others never answer. Nothing can be done with such a
 * lane: it is aborted, so that everybody hears of it, and all go on with the next generation: a lane of another name
 * and another block, because a peer may still be writing to the old one. Lanes die on all ranks, so all count
 * generations alike.
 */
#ifndef PARALLEL_DDP_BLOCK_H
#define PARALLEL_DDP_BLOCK_H

#include "parallel/ddp/ddp.h"

/* Collective: lanes and a block, in the first plan. Gradients that are ours move along. */
shoal_status ddp_open(struct ddp *ddp);
/* Ends what is in flight, here and on the other ranks if something is. */
void ddp_close(struct ddp *ddp);
/* Collective: the next generation, after a failure. */
shoal_status ddp_open_again(struct ddp *ddp);
/* Puts the block in the order of another plan, which is taken over. */
shoal_status ddp_move(struct ddp *ddp, struct ddp_plan *plan);
/* Gradients get memory of their own; lane and block are given up. */
void ddp_leave_world(struct ddp *ddp);
/* The lowest number for a lane on the group that no other wrapped module of this rank has, and its first generation
   that has not failed. */
void ddp_propose_lane(const struct ddp *ddp, int *number_out, int *generation_out);
shoal_status ddp_open_lane(shoal_group *group, const char *word, shoal_group **lane_out);
/* For the world's list. */
void ddp_world_ends(struct owned *owned);

#endif
