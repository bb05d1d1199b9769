/* SPDX-License-Identifier: MIT */
/*
 * The order of what ranks do with the wrapped modules of a group.
 *
 * Each module reduces on a lane of its own, so that gradients may arrive in any order within a backward pass. Ranks
 * that make passes in different order would then wait for each other on different lanes. So before a rank waits on any
 * of them, it says on a lane that all modules of the group share what it is about to do: the end of a backward pass,
 * clipping, wrapping, a forward pass that sends buffers. A rank that does one of these while others do another is told.
 *
 * A rank that gives up a backward pass aborts that lane; all go on with the next generation, a lane of another name.
 * Each rank counts a lane as lost when its own pass on it has failed, so all count alike.
 */
#ifndef PARALLEL_DDP_ORDER_H
#define PARALLEL_DDP_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/group.h"
#include "shoal/status.h"
#include "transport/purpose.h"

/* One for each group that has had a wrapped module. The world keeps it: its count must outlive the modules. */
struct ddp_order;

/* The order of the group; made if there is none. */
shoal_status ddp_order_find(shoal_group *group, struct ddp_order **order_out);

/* Which lane is in use: the number of those that were lost. */
uint32_t ddp_order_generation(const struct ddp_order *order);

/*
 * Collective: all ranks make this call next, of all on modules of the group, or SHOAL_ERR_MISMATCH on all. A failure of
 * one of `lanes`, on which a rank may tell that it has given up, ends the wait. After a mismatch all of them are
 * poisoned: nobody will answer what was started there.
 */
shoal_status ddp_order_compare(struct ddp_order *order, const struct purpose *purpose,
                               shoal_group *const *lanes, size_t n_lanes);

/* Why that generation has failed; SHOAL_OK: it has not. */
shoal_status ddp_order_failure(const struct ddp_order *order, uint32_t generation);

/* This rank gives up a pass of that generation: others that wait for it hear of it. */
void ddp_order_poison(struct ddp_order *order, uint32_t generation, shoal_status status, const char *text);

/*
 * The lanes of modules have generations of their own (block.h). A lane that has failed while its group has not is closed:
 * true, and the thread's error is cleared. NULL is left alone.
 */
bool ddp_order_close_failed(const struct ddp_order *order, shoal_group *lane);
/* The first generation of that lane number that was not lost, as far as this rank knows; and another one is. */
int ddp_order_first_generation(const struct ddp_order *order, int number);
void ddp_order_lose_lane(struct ddp_order *order, int number, int generation);

#endif
