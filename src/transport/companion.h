/* SPDX-License-Identifier: MIT */
/*
 * Compares calls for a transport whose data path cannot. Every collective first meets on a companion, a channel of
 * another transport between the same ranks. After that all members are in the same call, or all get SHOAL_ERR_MISMATCH.
 */
#ifndef TRANSPORT_COMPANION_H
#define TRANSPORT_COMPANION_H

#include "shoal/status.h"
#include "transport/collective.h"
#include "transport/transport.h"

/*
 * Runs a barrier on the companion that compares the call as fingerprints do. Call it for every collective of the
 * channel, in order, and use the companion for nothing else. The collective's deadline applies.
 */
shoal_status companion_meet(struct channel *companion, const struct collective *collective);

#endif
