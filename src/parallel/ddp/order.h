/* SPDX-License-Identifier: MIT */
/*
 * Checks that ranks do the same things with the wrapped modules of a group, in the same order.
 *
 * Each module reduces on a lane of its own, so gradients may arrive in any order within a backward pass. But ranks
 * that make passes in different orders would wait for each other on different lanes. So the modules of a group also
 * share one lane. Before a rank waits on a module's lane, it says on the shared one what it is about to do: end a
 * backward pass, clip, wrap, or send buffers before a forward pass. Ranks that are about to do different things get
 * an error.
 *
 * A rank that gives up a backward pass aborts the shared lane, and all go on with its next generation, a lane of
 * another name. A rank counts a lane as lost when its own pass on it has failed, so all ranks count the same.
 */
#ifndef PARALLEL_DDP_ORDER_H
#define PARALLEL_DDP_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/group.h"
#include "shoal/status.h"
#include "transport/purpose.h"

/* One for each group that has had a wrapped module. The world owns it, because its count must outlive the modules. */
struct ddp_order;

/* Finds the order of the group, or makes it. */
shoal_status ddp_order_find(shoal_group *group, struct ddp_order **order_out);

/* The generation of the shared lane that is in use: how many were lost before it. */
uint32_t ddp_order_generation(const struct ddp_order *order);

/*
 * Collective. All ranks must make this call next, of all calls on modules of the group; otherwise all get
 * SHOAL_ERR_MISMATCH. The wait also ends when one of `lanes` fails: a rank that gives up may say so there. After a
 * mismatch all of `lanes` are poisoned, because nobody will answer what was started there.
 */
shoal_status ddp_order_compare(struct ddp_order *order, const struct purpose *purpose,
                               shoal_group *const *lanes, size_t n_lanes);
/* Collective. The same without `lanes`, and `number` becomes the lowest of all ranks. */
shoal_status ddp_order_find_lowest(struct ddp_order *order, const struct purpose *purpose, int64_t *number);

/* Why that generation of the shared lane has failed; SHOAL_OK if it has not. */
shoal_status ddp_order_failure(const struct ddp_order *order, uint32_t generation);

/* Call when this rank gives up a pass of that generation: makes its lane fail, so that ranks that wait are told. */
void ddp_order_poison(struct ddp_order *order, uint32_t generation, shoal_status status, const char *text);

/* The lanes of modules have generations of their own (block.h). Closes a lane that has failed while its group
   has not: returns true, and clears the thread's error. `lane` may be NULL. */
bool ddp_order_close_failed(const struct ddp_order *order, shoal_group *lane);
/* ddp_order_first_generation gives the first generation of a lane number that this rank has not lost. */
int ddp_order_first_generation(const struct ddp_order *order, int number);
void ddp_order_lose_lane(struct ddp_order *order, int number, int generation);

#endif
