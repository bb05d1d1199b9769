/* SPDX-License-Identifier: MIT */
/* How the files of a module use watches. Others use module/module.h. */
#ifndef MODULE_WATCH_H
#define MODULE_WATCH_H

#include "shoal/module.h"

struct module_watch;

/* Returns the owner's reference, which module_watch_end drops. */
shoal_status module_watch_create(shoal_module_hook_function function, void *context,
                                 struct module_watch **watch_out);
/* A module has one watch: the first one that has not ended. */
void module_watch_give(struct module_watch *watch, shoal_module *module);

/* Call before `child` is added to the module (watch_tree.c): gives its tree the watch of the module, if there is one. */
shoal_status module_watch_child(const shoal_module *module, shoal_module *child);
/* Call before a call. */
shoal_status module_watch_call(const shoal_forward_call *call);
/* For a module that is being freed. */
void module_watch_clear(shoal_module *module);

#endif
