/* SPDX-License-Identifier: MIT */
/*
 * Gradients that a compiled step has reduced over the shards and not over the replicas (shoal_fsdp_set_all_reduce). The
 * engine keeps such gradients in memory of its own, where a graph could not find them. So each parameter has a leaf
 * whose gradient they are (fsdp_tensors.partial), which a graph takes and leaves like any other gradient. A unit has them
 * in one of the two places: they move when an eager pass, or a capture, needs them.
 */
#ifndef PARALLEL_FSDP_MODULE_PARTIAL_H
#define PARALLEL_FSDP_MODULE_PARTIAL_H

#include "parallel/fsdp/module/wrapper.h"

/* Makes the leaf of a parameter, if it has none. The unit is prepared. */
shoal_status fsdp_wrapper_need_partial(const struct fsdp_wrapper *wrapper, size_t index);
/* Whether a leaf has a gradient. */
bool fsdp_wrapper_has_partial(const struct fsdp_wrapper *wrapper);
/* Move gradients from the leaves to the engine, and back. Do nothing if there are none. */
shoal_status fsdp_wrapper_give_partial(const struct fsdp_wrapper *wrapper);
shoal_status fsdp_wrapper_take_partial(const struct fsdp_wrapper *wrapper);

#endif
