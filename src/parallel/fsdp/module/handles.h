/* SPDX-License-Identifier: MIT */
/* Finding what was made of a module. */
#ifndef PARALLEL_FSDP_MODULE_HANDLES_H
#define PARALLEL_FSDP_MODULE_HANDLES_H

#include "parallel/fsdp/module/wrapper.h"

/* For public calls, whose name begins the error text. Clears the error of the thread first. */
shoal_status fsdp_find_wrapper(const char *call, const shoal_module *module,
                               struct fsdp_wrapper **wrapper_out);

/* The parameter that a tensor in the tree is, as a shard or as a whole; NULL: it is not sharded. */
shoal_status fsdp_find_tensor(shoal_module *module, const shoal_tensor *tensor, shoal_fsdp_param **param_out);

#endif
