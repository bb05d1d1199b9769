/* SPDX-License-Identifier: MIT */
/* What the files behind shoal/fsdp.h share: params.c (making contexts, and parameters by number),
   step.c, way.c. */
#ifndef PARALLEL_FSDP_EXPLICIT_EXPLICIT_H
#define PARALLEL_FSDP_EXPLICIT_EXPLICIT_H

#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/state/way.h"
#include "shoal/fsdp.h"

extern const struct fsdp_way explicit_way;

/* Whether a public call may use the context: it was made by shoal/fsdp.h, not by modules, and its world is open. */
shoal_status explicit_check(const char *call, const shoal_fsdp *fsdp);

/* Find a unit or parameter by its number. Each clears the thread's error first; error texts begin with the call. */
shoal_status explicit_find_unit(const char *call, const shoal_fsdp *fsdp, int unit,
                                struct fsdp_unit **unit_out);
shoal_status explicit_find_param(const char *call, const shoal_fsdp *fsdp, int id,
                                 struct fsdp_unit **unit_out, struct fsdp_param **param_out);

/* SHOAL_ERR_STATE if a backward pass was not ended: some gradients may not have arrived yet. */
shoal_status explicit_check_ended(const shoal_fsdp *fsdp, const char *what);

#endif
