/* SPDX-License-Identifier: MIT */
/* What the files behind shoal/fsdp.h share: params.c (making contexts, and parameters by number),
   step.c, way.c. */
#ifndef PARALLEL_FSDP_EXPLICIT_EXPLICIT_H
#define PARALLEL_FSDP_EXPLICIT_EXPLICIT_H

#include "parallel/fsdp/engine/context.h"
#include "parallel/fsdp/engine/handle.h"
#include "parallel/fsdp/engine/way.h"
#include "shoal/fsdp.h"

extern const struct fsdp_way explicit_way;

/* SHOAL_OK for a context of shoal/fsdp.h whose world is open: modules call their units themselves. */
shoal_status explicit_check(const char *call, const shoal_fsdp *fsdp);

/* By number; each clears the error of the thread first, and texts begin with the call. */
shoal_status explicit_find_unit(const char *call, const shoal_fsdp *fsdp, int unit,
                                struct fsdp_unit **unit_out);
shoal_status explicit_find_param(const char *call, const shoal_fsdp *fsdp, int id,
                                 struct fsdp_unit **unit_out, struct fsdp_param **param_out);

/* Who forgets to end a backward would train with what happens to have arrived. */
shoal_status explicit_check_ended(const shoal_fsdp *fsdp, const char *what);

#endif
