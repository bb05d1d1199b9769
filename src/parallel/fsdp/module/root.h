/* SPDX-License-Identifier: MIT */
/* A root is the outermost sharded module of a tree, with all sharded modules inside. */
#ifndef PARALLEL_FSDP_MODULE_ROOT_H
#define PARALLEL_FSDP_MODULE_ROOT_H

#include "parallel/fsdp/module/wrapper.h"

/* Call at the first forward pass: makes the wrapper a root, unless it has one. If that fails, ranks that wait for this one
   are told. */
shoal_status fsdp_wrapper_prepare(struct fsdp_wrapper *wrapper);
/* The same for a captured step, whose failure is told by others (comm/group/calls.h). */
shoal_status fsdp_wrapper_prepare_captured(struct fsdp_wrapper *wrapper);

/* Drops the program's original parameters, which were kept to find parameters that two units share (check_tied). */
void fsdp_root_drop_originals(struct fsdp_root *root);

/* Forgets which modules are being called, for example after a failed forward pass. */
void fsdp_root_forget_calls(struct fsdp_root *root);

#endif
