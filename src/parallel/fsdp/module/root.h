/* SPDX-License-Identifier: MIT */
/* Roots: the outermost sharded module of a tree, and all that are inside. */
#ifndef PARALLEL_FSDP_MODULE_ROOT_H
#define PARALLEL_FSDP_MODULE_ROOT_H

#include "parallel/fsdp/module/wrapper.h"

/* At the first forward: makes the wrapper a root, unless it has one. */
shoal_status fsdp_wrapper_prepare(struct fsdp_wrapper *wrapper);

/* The caller's parameters, as they were: nothing can be tied to them any more. */
void fsdp_root_drop_originals(struct fsdp_root *root);

/* No module is being called. */
void fsdp_root_forget_calls(struct fsdp_root *root);

#endif
