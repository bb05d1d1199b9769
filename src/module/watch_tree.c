/* SPDX-License-Identifier: MIT */
/* Gives a watch to all modules of a tree. */
#include "base/try.h"
#include "module/module.h"
#include "module/watch.h"

static shoal_status give(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    (void)next;
    module_watch_give(context, entry->module);
    return SHOAL_OK;
}

shoal_status module_watch_tree(shoal_module *root, shoal_module_hook_function function, void *context,
                               struct module_watch **watch_out)
{
    struct module_watch *watch;
    TRY(module_watch_create(function, context, &watch));
    shoal_status status = shoal_module_walk(root, SHOAL_WALK_MODULES, give, watch);
    if (status != SHOAL_OK) {
        module_watch_end(watch);
        return status;
    }
    *watch_out = watch;
    return SHOAL_OK;
}

shoal_status module_watch_child(const shoal_module *module, shoal_module *child)
{
    return module->watch ? shoal_module_walk(child, SHOAL_WALK_MODULES, give, module->watch) : SHOAL_OK;
}
