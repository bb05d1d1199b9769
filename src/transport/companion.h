/* SPDX-License-Identifier: MIT */
/*
 * Comparing calls for a transport whose data path cannot: every collective meets on a companion first, a channel of another
 * transport between the same ranks. After that all members are in the same call, or all have SHOAL_ERR_MISMATCH.
 */
#ifndef TRANSPORT_COMPANION_H
#define TRANSPORT_COMPANION_H

#include "shoal/status.h"
#include "transport/collective.h"
#include "transport/transport.h"

/*
 * Runs a barrier on the companion that compares what the call says, as fingerprints do. Every collective of the channel
 * meets, in order, and nothing else uses the companion. The deadline is the collective's.
 */
shoal_status companion_meet(struct channel *companion, const struct collective *collective);

#endif
