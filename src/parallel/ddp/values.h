/* SPDX-License-Identifier: MIT */
/* The first values of parameters that are wrapped: those of the first rank. */
#ifndef PARALLEL_DDP_VALUES_H
#define PARALLEL_DDP_VALUES_H

#include "parallel/ddp/collect.h"

/* Collective. Sends the tensors of the list that are new; all ranks have compared the list. */
shoal_status ddp_broadcast(shoal_group *lane, const struct ddp_tensors *list);

#endif
