/* SPDX-License-Identifier: MIT */
/* Settles layouts, dtypes and lanes once all parameters are known. */
#ifndef PARALLEL_FSDP_ENGINE_STEP_PREPARE_H
#define PARALLEL_FSDP_ENGINE_STEP_PREPARE_H

#include "parallel/fsdp/engine/state/context.h"

/* Collective, at the first forward pass. Does nothing after that. */
shoal_status fsdp_prepare(struct fsdp_context *context);

/* In which dtype a parameter is gathered, also before the first forward pass. */
shoal_dtype fsdp_gathered_dtype(const struct fsdp_unit *unit, const struct fsdp_param *param);

/* What `wanted` means for this unit: always, never, or partly. */
shoal_reshard fsdp_effective_reshard(const struct fsdp_unit *unit, shoal_reshard wanted);

#endif
