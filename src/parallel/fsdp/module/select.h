/* SPDX-License-Identifier: MIT */
/* Modules that are given to be one unit. */
#ifndef PARALLEL_FSDP_MODULE_SELECT_H
#define PARALLEL_FSDP_MODULE_SELECT_H

#include <stddef.h>

#include "shoal/module.h"
#include "shoal/status.h"

/* Whether modules can be one unit. Of those, the ones that are in no other; there is room for all. */
shoal_status fsdp_check_modules(shoal_module *const *modules, size_t n_modules);
shoal_status fsdp_keep_outermost(shoal_module *const *modules, size_t n_modules, shoal_module **kept_out,
                                 size_t *n_kept_out);

#endif
