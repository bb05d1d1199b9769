/* SPDX-License-Identifier: MIT */
/* What collectives of a wrapped module are for, as ranks compare it (transport/purpose.h). */
#ifndef PARALLEL_DDP_PURPOSE_H
#define PARALLEL_DDP_PURPOSE_H

#include "parallel/ddp/ddp.h"
#include "transport/purpose.h"

struct purpose ddp_purpose(const struct ddp *ddp, enum purpose_id id);

/* ddp_find_frozen notes which parameters are frozen as a backward pass begins. The purpose of the pass's
   collectives then contains that, and how many newer forward passes are recorded. */
shoal_status ddp_find_frozen(struct ddp *ddp);
struct purpose ddp_backward_purpose(const struct ddp *ddp, enum purpose_id id);

/* Collective. ddp_order_compare for calls between passes, when the module's own lanes may have failed. Does
   nothing once the world is closed. */
shoal_status ddp_compare(const struct ddp *ddp, const struct purpose *purpose);
/* Collective. The same, and tells all ranks if one of them cannot go on: `mine` is the status of this rank, with the
   thread's error text. Other ranks than that one get `theirs`. */
shoal_status ddp_compare_ready(const struct ddp *ddp, const struct purpose *purpose, shoal_status mine,
                               const char *theirs);

#endif
