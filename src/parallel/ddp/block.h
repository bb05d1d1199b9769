/* SPDX-License-Identifier: MIT */
/*
 * The lane that buckets go over, and the block of symmetric memory that they are ranges of.
 *
 * The block is made when an eager backward needs it, so that programs which only run compiled steps never have it. Within one
 * backward ranks may come to modules in any order, and ranks may make other numbers of backwards without synchronization. So
 * a rank opens its block by itself, at the beginning of its first backward of either kind, and waits for nobody. At the end
 * of the first synchronized one, which sends nothing before, all ranks share their blocks, in an order that they have
 * compared.
 *
 *     no block --a backward begins--> opened --the end of a synchronized one--> shared
 *
 * A rank that cannot open it keeps gradients in memory of their own meanwhile, and tries again at the end and in later
 * backwards; if it cannot share its block, that is the error of this backward on all ranks.
 *
 * A backward that fails on one rank may leave collectives that others never answer. Nothing can be done with such a
 * lane: it is aborted, so that everybody hears of it, and all go on with the next generation: a lane of another name
 * and another block, because a peer may still be writing to the old one. Lanes die on all ranks, so all count
 * generations alike.
 */
#ifndef PARALLEL_DDP_BLOCK_H
#define PARALLEL_DDP_BLOCK_H

#include "parallel/ddp/ddp.h"

/* Lanes, and the first plan. */
shoal_status ddp_open(struct ddp *ddp);
/* Before gradients come: each parameter has a gradient with memory, in the block where that can be had. */
shoal_status ddp_need_places(struct ddp *ddp);
/* Collective, before the block is used for one: all ranks have it and all gradients are in it, or it is an error on all. */
shoal_status ddp_share_block(struct ddp *ddp);
/* Ends what is in flight, here and on the other ranks if something is. */
void ddp_close(struct ddp *ddp);
/* The next generation, after a failure. Gradients that are ours move along. */
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
