/* SPDX-License-Identifier: MIT */
/* How calls on a context differ between the explicit calls (explicit/) and modules (module/). */
#ifndef PARALLEL_FSDP_ENGINE_STATE_WAY_H
#define PARALLEL_FSDP_ENGINE_STATE_WAY_H

#include "parallel/clip.h"
#include "parallel/fsdp/engine/state/handle.h"

struct fsdp_way {
    /* SHOAL_ERR_STATE, with the call in front, if a backward pass is running or has failed. */
    shoal_status (*check_ended)(const struct shoal_fsdp *fsdp, const char *call);
    /* Visits all gradients of shards. */
    shoal_status (*walk_gradients)(void *fsdp, bool is_written, clip_visitor visit, void *context);
    /* Clears the gradients of shards, and drops those that were not reduced. */
    shoal_status (*zero_grad)(struct shoal_fsdp *fsdp);
    shoal_status (*reset)(struct shoal_fsdp *fsdp);
    /* Ends a collective call: puts its name before the error text. */
    shoal_status (*end_call)(struct shoal_fsdp *fsdp, const char *call, shoal_status status);
};

#endif
