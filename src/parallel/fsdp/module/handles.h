/* SPDX-License-Identifier: MIT */
/* Finds the wrapper or parameter that belongs to a module or tensor. */
#ifndef PARALLEL_FSDP_MODULE_HANDLES_H
#define PARALLEL_FSDP_MODULE_HANDLES_H

#include "parallel/fsdp/module/wrapper.h"

/* For public calls, whose name begins the error text. Clears the thread's error first. */
shoal_status fsdp_find_wrapper(const char *call, const shoal_module *module,
                               struct fsdp_wrapper **wrapper_out);

/* Finds the parameter whose shard or whole a tensor in the tree is; NULL if it is not sharded. */
shoal_status fsdp_find_tensor(shoal_module *module, const shoal_tensor *tensor, shoal_fsdp_param **param_out);

#endif
