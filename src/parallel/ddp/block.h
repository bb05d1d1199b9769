/* SPDX-License-Identifier: MIT */
/*
 * The lane on which buckets are reduced, and the block of symmetric memory that holds them: each bucket is a range
 * of it.
 *
 * The block is made when an eager backward pass needs it, so programs that only run compiled steps never have one.
 * Within a backward pass ranks may reach modules in different orders, and they may make different numbers of
 * backward passes without synchronization. So a rank opens its block without waiting for others, when its first
 * backward pass of either kind begins. The first synchronized pass sends nothing before its end. There all ranks
 * share their blocks, in an order that they have compared.
 *
 *     no block --a backward pass begins--> opened --a synchronized one ends--> shared
 *
 * On a device other than the CPU the block is memory of the rank's own. There is nothing to share then, but
 * ranks agree that all have it.
 *
 * A rank that cannot open its block keeps gradients in other memory and tries again, at the end of the pass and in
 * later ones. If a rank cannot share its block, the backward pass fails on all ranks.
 *
 * A backward pass that fails on one rank may leave collectives that other ranks never answer. Such a lane cannot be
 * used again. It is aborted, so that every rank is told, and all go on with the next generation: a lane of another
 * name, and another block, because a peer may still be writing to the old one. A lane fails on all ranks, so all
 * ranks count the same number of generations.
 */
#ifndef PARALLEL_DDP_BLOCK_H
#define PARALLEL_DDP_BLOCK_H

#include "parallel/ddp/ddp.h"

/* Opens the lanes and makes the first plan. */
shoal_status ddp_open(struct ddp *ddp);
/* For a module that is wrapped again: opens the lane of buffers that `fresh`, a struct with new lists, needs, and makes
   its first plan. */
shoal_status ddp_open_lists(struct ddp *fresh);
/* Moves gradients to memory of their own, and gives up the block. */
void ddp_leave_block(struct ddp *ddp);
/* Call before gradients arrive. Gives each parameter memory for its gradient: in the block if there is one,
   otherwise apart. */
shoal_status ddp_need_places(struct ddp *ddp);
/* Collective, before the block is first reduced in. Afterwards all ranks have it and all gradients are in it,
   or all fail. */
shoal_status ddp_share_block(struct ddp *ddp);
/* Waits for collectives in flight. If there are any, or others may wait for this rank, aborts the lane so that
   they are told. */
void ddp_close(struct ddp *ddp);
/* Opens the next generation after a failure. Gradients that lie in the old block move to the new one. */
shoal_status ddp_open_again(struct ddp *ddp);
/* Moves gradients within the block to the places of another plan, which is taken over. */
shoal_status ddp_move(struct ddp *ddp, struct ddp_plan *plan);
/* Moves gradients to memory of their own, and gives up lane and block. */
void ddp_leave_world(struct ddp *ddp);
/* Proposes a lane on the group: the lowest number that no other wrapped module of this rank has, and the first
   generation of that number that has not failed. */
void ddp_propose_lane(const struct ddp *ddp, int *number_out, int *generation_out);
shoal_status ddp_open_lane(shoal_group *group, const char *word, shoal_group **lane_out);
/* Called by the world when it is closed. */
void ddp_world_ends(struct owned *owned);

#endif
