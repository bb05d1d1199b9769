/* SPDX-License-Identifier: MIT */
/* Ranks compare what they are about to wrap. Whatever fails on one rank, all go through the same collectives and
   hear of it. */
#ifndef PARALLEL_DDP_AGREE_H
#define PARALLEL_DDP_AGREE_H

#include "parallel/ddp/collect.h"

/* Collective: `mine` is how collecting ended here. Also chooses the numbers of the module's lane and block. */
shoal_status ddp_agree(struct ddp_collector *collector, shoal_group *lane, shoal_status mine);
/* Collective: this rank's status if it is a failure, otherwise the first of the others'. */
shoal_status ddp_confirm(shoal_group *lane, shoal_status mine);

#endif
