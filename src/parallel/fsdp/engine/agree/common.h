/* SPDX-License-Identifier: MIT */
/*
 * The common lane of a context with several domains (state/domain.h). It has all ranks of all domains, and carries what
 * concerns all units: comparisons of calls, marks between passes, the norm of gradients.
 *
 * Ranks that diverge could wait on lanes of different domains, each for the other. So a rank leaves a mark on the common
 * lane before it issues a collective on the lane of a domain, and looks at the common lane as long as it waits for one.
 * Marks are compared like other collectives: the first that differs is found by every rank that waits anywhere.
 *
 * With one domain there is no common lane. All functions may be called then, too.
 */
#ifndef PARALLEL_FSDP_ENGINE_AGREE_COMMON_H
#define PARALLEL_FSDP_ENGINE_AGREE_COMMON_H

#include "parallel/fsdp/engine/state/context.h"
#include "transport/purpose.h"

/* Changes a purpose to the form that is compared on the common lane: it gets the number of the context there. */
struct purpose fsdp_common_purpose(const struct fsdp_context *context, struct purpose purpose);

/* Leaves a mark on the common lane, for which nobody has to wait. Does nothing if there is no such lane. */
shoal_status fsdp_common_mark(struct fsdp_context *context, const struct purpose *purpose);
/* Collective over the common lane: waits until all ranks have left this mark. Does nothing if there is no such lane. Call
   it before a blocking collective on the lane of a domain, which looks nowhere else. */
shoal_status fsdp_common_meet(struct fsdp_context *context, const struct purpose *purpose);
/* Waits for a collective on any lane of the context. Looks at the common lane, and at whether a lane has failed, until
   it has ended. */
shoal_status fsdp_common_wait(const struct fsdp_context *context, shoal_work *work);
/* Waits for so long. Returns whether the work has ended, and then gives its status and text. */
bool fsdp_common_has_ended(shoal_work *work, double seconds, shoal_status *status_out);
/* Drops the last mark. */
void fsdp_common_drop(struct fsdp_context *context);

/* fsdp_compare (compare.h) over all ranks of a context. */
shoal_status fsdp_compare_all(struct fsdp_context *context, const struct purpose *purpose);
/* fsdp_compare for a call on a unit: over all ranks of its context if that has a common lane, otherwise over the ranks
   of the unit. */
shoal_status fsdp_compare_of(const struct fsdp_unit *unit, const struct purpose *purpose);

#endif
