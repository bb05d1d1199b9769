/* SPDX-License-Identifier: MIT */
/* How the files of a module use guards. Others use module/module.h. */
#ifndef MODULE_GUARD_H
#define MODULE_GUARD_H

#include "shoal/module.h"

struct module_guard;

/* Returns the owner's reference, which module_guard_end drops. */
shoal_status module_guard_create(shoal_module_hook_function function, void *context,
                                 struct module_guard **guard_out);
/* Makes room for `n` more guards, so that as many calls of module_guard_give cannot fail. */
shoal_status module_guard_reserve(shoal_module *module, size_t n);
/* Adds a guard to those of the module, unless it is one of them. */
void module_guard_give(struct module_guard *guard, shoal_module *module);

/* Call before `child` is added to the module (guard_tree.c): gives the child's tree the guards of the module, to all
   modules of that tree or, on failure, to none. */
shoal_status module_guard_child(const shoal_module *module, shoal_module *child);
/* Call when a module is called, before its hooks run: asks the oldest of its guards that has not ended. */
shoal_status module_guard_call(const shoal_forward_call *call);
/* For a module that is being freed. */
void module_guard_clear(shoal_module *module);

#endif
