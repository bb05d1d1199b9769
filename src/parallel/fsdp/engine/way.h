/* SPDX-License-Identifier: MIT */
/* What calls on a context do differently in the two ways in: with raw pointers (explicit/) and with modules (module/). */
#ifndef PARALLEL_FSDP_ENGINE_WAY_H
#define PARALLEL_FSDP_ENGINE_WAY_H

#include "parallel/clip.h"
#include "parallel/fsdp/engine/handle.h"

struct fsdp_way {
    /* SHOAL_ERR_STATE, with the call in front: a backward pass is running, or one has failed. */
    shoal_status (*check_ended)(const struct shoal_fsdp *fsdp, const char *call);
    /* All gradients of shards. */
    shoal_status (*walk_gradients)(void *fsdp, bool is_written, clip_visitor visit, void *context);
    /* Clears them, and what was not reduced. */
    shoal_status (*zero_grad)(struct shoal_fsdp *fsdp);
    shoal_status (*reset)(struct shoal_fsdp *fsdp);
    /* The end of a call that others took part in: its name begins the text. */
    shoal_status (*end_call)(struct shoal_fsdp *fsdp, const char *call, shoal_status status);
};

#endif
