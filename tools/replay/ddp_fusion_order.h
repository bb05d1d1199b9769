/* SPDX-License-Identifier: MIT */
/*
 * The order of two graphs of equal nodes where it matters: for each wait the starts and compute nodes between its
 * start and it, for each start the compute nodes before it.
 *
 * Where views and waits stand among each other does not matter: PyTorch's schedule_comm_wait leaves the waits of a
 * coalesced all-reduce in reverse order, and its split results too; ours keeps their order.
 */
#ifndef REPLAY_DDP_FUSION_ORDER_H
#define REPLAY_DDP_FUSION_ORDER_H

#include "ddp_fusion_match.h"
#include "ddp_fusion_say.h"

/* FUSION_WRONG, naming a wait or start and a node that stands elsewhere. */
enum fusion_verdict fusion_check_order(struct fusion_case *self, const struct fusion_match *match);

#endif
