/* SPDX-License-Identifier: MIT */
/* How long wrappers and roots live. */
#ifndef PARALLEL_FSDP_MODULE_LIFETIME_H
#define PARALLEL_FSDP_MODULE_LIFETIME_H

#include "parallel/fsdp/module/wrapper.h"

/* Called when one of its modules dies. The last one frees the wrapper, unless something that was recorded under
   its root is left. */
void fsdp_wrapper_leave(struct fsdp_seat *seat);
/* Frees a wrapper that nobody uses. */
void fsdp_wrapper_free(struct fsdp_wrapper *wrapper);
void fsdp_tensors_free(struct fsdp_tensors *tensors);

/* A hook that points to the root, or to one of its wrappers, keeps the root and all its wrappers until it lets go. */
void fsdp_root_keep(struct fsdp_root *root);
void fsdp_root_let_go(struct fsdp_root *root);
/* Called by the world when it is closed. */
void fsdp_wrapper_world_ends(struct owned *owned);

#endif
