/* SPDX-License-Identifier: MIT */
/*
 * Compares the order of two graphs with equal nodes where it matters: for each wait, the starts and compute nodes
 * between its start and it; for each start, the compute nodes before it.
 *
 * The order among views and waits does not matter: PyTorch's schedule_comm_wait leaves the waits of a coalesced
 * all-reduce, and its split results, in reverse order; ours keeps their order.
 */
#ifndef REPLAY_DDP_FUSION_ORDER_H
#define REPLAY_DDP_FUSION_ORDER_H

#include "ddp_fusion_match.h"
#include "ddp_fusion_say.h"

/* FUSION_WRONG, naming a wait or start and a node that stands elsewhere. */
enum fusion_verdict fusion_check_order(struct fusion_case *self, const struct fusion_match *match);

#endif
