/* SPDX-License-Identifier: MIT */
/* How long wrappers and roots live. */
#ifndef PARALLEL_FSDP_MODULE_LIFETIME_H
#define PARALLEL_FSDP_MODULE_LIFETIME_H

#include "parallel/fsdp/module/wrapper.h"

/* One of its modules dies. The last one takes the wrapper with it, unless something was recorded under its root. */
void fsdp_wrapper_leave(struct fsdp_seat *seat);
/* What nobody has any more, or nobody ever had. */
void fsdp_wrapper_free(struct fsdp_wrapper *wrapper);
void fsdp_tensors_free(struct fsdp_tensors *tensors);

/* A hook that points to a wrapper of the root, or to the root, keeps all of it; and lets go. */
void fsdp_root_keep(struct fsdp_root *root);
void fsdp_root_let_go(struct fsdp_root *root);
/* The world's list tells of its end. */
void fsdp_wrapper_world_ends(struct owned *owned);

#endif
