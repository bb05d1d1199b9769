/* SPDX-License-Identifier: MIT */
/* Ranks tell each other whether something has failed. */
#ifndef PARALLEL_DDP_CONFIRM_H
#define PARALLEL_DDP_CONFIRM_H

#include "shoal/group.h"
#include "shoal/status.h"

/* Collective. Returns this rank's status if it is a failure, otherwise the status of a rank that failed, if any. */
shoal_status ddp_confirm(shoal_group *lane, shoal_status mine);

#endif
