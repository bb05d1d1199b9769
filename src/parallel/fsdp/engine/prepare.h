/* SPDX-License-Identifier: MIT */
/* What is settled once all parameters are known. */
#ifndef PARALLEL_FSDP_ENGINE_PREPARE_H
#define PARALLEL_FSDP_ENGINE_PREPARE_H

#include "parallel/fsdp/engine/context.h"

/* Layouts, dtypes, lanes: at the first forward. Collective; nothing after that. */
shoal_status fsdp_prepare(struct fsdp_context *context);

/* What is wanted of a unit, with few words: always, never, or partly. */
shoal_reshard fsdp_effective_reshard(const struct fsdp_unit *unit, shoal_reshard wanted);

#endif
