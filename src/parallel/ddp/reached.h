/* SPDX-License-Identifier: MIT */
/* Looks for parameters that get gradients although they are not wrapped: they came after the last wrapping (follow.h). */
#ifndef PARALLEL_DDP_REACHED_H
#define PARALLEL_DDP_REACHED_H

#include "parallel/ddp/ddp.h"

/* Call at the end of a backward pass that is reduced, before anything of it is used. SHOAL_ERR_STATE if it has reached a
   parameter of the tree that is not wrapped: the gradient of this rank would stay alone. */
shoal_status ddp_check_reached(struct ddp *ddp);

#endif
