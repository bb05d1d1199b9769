/* SPDX-License-Identifier: MIT */
/* Walking a tree of modules from inside the library. */
#ifndef MODULE_WALK_H
#define MODULE_WALK_H

#include "module/module.h"

/* In addition to the public flags: visits every place of a tensor, but every module once. */
#define WALK_ALL_PLACES (1u << 31)

/* shoal_module_walk without checks, for visitors of the library. */
shoal_status walk_tree(shoal_module *module, uint32_t flags, shoal_module_visitor visitor, void *context);

/* Whether `wanted` is `module` or somewhere inside it. */
shoal_status walk_contains(shoal_module *module, const shoal_module *wanted, bool *contains_out);

/* Gives the path from `module` to `wanted`, cut to fit. False if there is none, or no memory for the search. */
bool walk_path_of(shoal_module *module, const shoal_module *wanted, char *path, size_t path_bytes);

#endif
