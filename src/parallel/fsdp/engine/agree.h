/* SPDX-License-Identifier: MIT */
/* Whether all ranks have the same units. */
#ifndef PARALLEL_FSDP_ENGINE_AGREE_H
#define PARALLEL_FSDP_ENGINE_AGREE_H

#include "parallel/fsdp/engine/context.h"

/* Collective over shards and replicas: SHOAL_ERR_MISMATCH on all of them, naming the unit, when something differs. */
shoal_status fsdp_agree(const struct fsdp_context *context);

#endif
