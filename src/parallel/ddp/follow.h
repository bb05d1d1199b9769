/* SPDX-License-Identifier: MIT */
/*
 * Follows a program that changes the tree of a wrapped module: parameters that are added, replaced, thawed or tied. The
 * tree is wrapped again before the next forward pass whose gradients will be reduced: parameters that stayed keep their
 * gradients, new ones get the values of the first rank, and buckets are planned anew. Nobody has to call anything.
 *
 *     nothing has changed anywhere     one comparison (base/changes.h)
 *     something has                    a walk; the parameters are those that are wrapped: nothing to do
 *     other parameters                 all ranks wrap again. Before, they compare that all of them do, on the lane of
 *                                      the order and on that of the module; so a rank that goes on with a step, eager or
 *                                      compiled, meets that, and all get an error
 *
 * Forward passes without gradients or without synchronization wrap nothing: ranks may make different numbers of them.
 */
#ifndef PARALLEL_DDP_FOLLOW_H
#define PARALLEL_DDP_FOLLOW_H

#include "parallel/ddp/ddp.h"

/* Call before a forward pass. Collective if the tree has other parameters and this forward pass will be reduced. In a
   capture this is not part of the graph. */
shoal_status ddp_follow(struct ddp *ddp);

/* Has changes followed before calls of modules inside, too, also of those that are added later: a program may call them
   by themselves. */
shoal_status ddp_guard(struct ddp *ddp);

#endif
