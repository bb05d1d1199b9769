/* SPDX-License-Identifier: MIT */
/* Clipping the gradients of shards. */
#ifndef PARALLEL_FSDP_CLIP_H
#define PARALLEL_FSDP_CLIP_H

#include "parallel/fsdp/unit.h"

/* Collective over the shards: the 2-norm of all gradients, and gradients scaled to max_norm if it is larger. */
shoal_status fsdp_clip_norm(struct fsdp_context *context, double max_norm, double *norm_out);

#endif
