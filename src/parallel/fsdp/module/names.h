/* SPDX-License-Identifier: MIT */
/* Names of units and parameters. */
#ifndef PARALLEL_FSDP_MODULE_NAMES_H
#define PARALLEL_FSDP_MODULE_NAMES_H

#include "parallel/fsdp/module/wrapper.h"

/* Names the units of a root, and their parameters, by their paths in the root's module. */
shoal_status fsdp_name_units(struct fsdp_root *root, shoal_module *module);

#endif
