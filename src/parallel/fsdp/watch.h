/* SPDX-License-Identifier: MIT */
/* What a module hears of its unit: tensors take turns, gradients are handed over and land. */
#ifndef PARALLEL_FSDP_WATCH_H
#define PARALLEL_FSDP_WATCH_H

#include "parallel/fsdp/unit.h"

struct fsdp_wrapper;

extern const struct fsdp_watch fsdp_module_watch;

/* The gradient of a full parameter that was left on its tensor, in memory that nobody else has; nothing if there is none. */
shoal_status fsdp_watch_get_pending(struct fsdp_wrapper *wrapper, size_t index,
                                    shoal_pending_gradient *pending);

#endif
