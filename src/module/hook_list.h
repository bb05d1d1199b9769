/* SPDX-License-Identifier: MIT */
/*
 * The list of a module's hooks. A hook has a reference count: the module's list holds one reference and the program's
 * handle another, so either may end first. While a call of the module is in progress, the list only grows; hooks that
 * are removed then are marked, and leave it when the last such call has ended.
 */
#ifndef MODULE_HOOK_LIST_H
#define MODULE_HOOK_LIST_H

#include "module/module.h"

struct shoal_module_hook {
    _Atomic uint32_t references; /* the list's and the handle's */
    shoal_module *module;        /* not counted; NULL once the hook is no longer in its list */
    uint64_t number;
    bool is_removed;
    shoal_module_hook_definition definition;
};

void module_hook_unref(shoal_module_hook *hook);

/* Drops the hooks that were removed during calls. Call it when no call is in progress, and with a reference on the
   module. */
void module_hooks_drop_removed(shoal_module *module);

/* For a module that is being freed. */
void module_hooks_clear(shoal_module *module);

#endif
