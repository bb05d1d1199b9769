/* SPDX-License-Identifier: MIT */
/* Checks and selects the modules that become one unit. */
#ifndef PARALLEL_FSDP_MODULE_SELECT_H
#define PARALLEL_FSDP_MODULE_SELECT_H

#include <stddef.h>

#include "shoal/module.h"
#include "shoal/status.h"

/* fsdp_check_given: whether there are modules and none is NULL; call it before error_clear. fsdp_check_modules: whether
   they can be one unit. fsdp_keep_outermost: those that are inside no other one; `kept_out` has room for all. */
shoal_status fsdp_check_given(shoal_module *const *modules, size_t n_modules);
shoal_status fsdp_check_modules(shoal_module *const *modules, size_t n_modules);
shoal_status fsdp_keep_outermost(shoal_module *const *modules, size_t n_modules, shoal_module **kept_out,
                                 size_t *n_kept_out);

#endif
