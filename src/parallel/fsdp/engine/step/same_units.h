/* SPDX-License-Identifier: MIT */
/* Checks that all ranks have the same units. */
#ifndef PARALLEL_FSDP_ENGINE_STEP_SAME_UNITS_H
#define PARALLEL_FSDP_ENGINE_STEP_SAME_UNITS_H

#include "parallel/fsdp/engine/state/context.h"

/* Collective over shards and replicas. If something differs, all ranks get SHOAL_ERR_MISMATCH, which names the unit. */
shoal_status fsdp_agree(struct fsdp_context *context);
/* The same again, without values, if settings may have changed since. */
shoal_status fsdp_agree_on_settings(struct fsdp_context *context);

#endif
