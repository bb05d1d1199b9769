/* SPDX-License-Identifier: MIT */
/* Making a wrapper: it takes the parameters of modules, and gives them back if something fails. */
#ifndef PARALLEL_FSDP_MODULE_SHARDING_H
#define PARALLEL_FSDP_MODULE_SHARDING_H

#include "parallel/fsdp/module/wrapper.h"

/*
 * Takes the parameters of the modules, except those that a sharded module inside has. There are two steps, so that
 * hooks can be added between them. After fsdp_wrapper_create the whole parameters can still be put back:
 * fsdp_wrapper_undo does that and frees the wrapper. fsdp_wrapper_settle drops them.
 */
shoal_status fsdp_wrapper_create(shoal_module *const *modules, size_t n_modules,
                                 const shoal_fully_shard_options *options, struct fsdp_wrapper **wrapper_out);
void fsdp_wrapper_undo(struct fsdp_wrapper *wrapper);
void fsdp_wrapper_settle(struct fsdp_wrapper *wrapper);

#endif
