/* SPDX-License-Identifier: MIT */
/* Ranks compare what they are about to wrap. If something fails on one rank, it still makes the same
   collectives as the others, so all ranks learn of the failure. */
#ifndef PARALLEL_DDP_AGREE_H
#define PARALLEL_DDP_AGREE_H

#include "parallel/ddp/collect.h"

/* Collective. `mine` is the status of ddp_collect on this rank. Also chooses the numbers of the module's lane
   and block. */
shoal_status ddp_agree(struct ddp_collector *collector, shoal_group *lane, shoal_status mine);

#endif
