/* SPDX-License-Identifier: MIT */
#include "module/hook_list.h"

#include "base/mem.h"
#include "base/refcount.h"

void module_hook_unref(shoal_module_hook *hook)
{
    if (refcount_put(&hook->references)) {
        mem_free(hook);
    }
}

/* Removes a hook from the list before it calls the program's function, because that may change the list again. */
static void drop_hook(shoal_module *module, size_t index)
{
    shoal_module_hook *hook = module->hooks[index];
    for (size_t i = index + 1; i < module->n_hooks; i++) {
        module->hooks[i - 1] = module->hooks[i];
    }
    module->n_hooks--;
    hook->module = NULL;
    if (hook->definition.destroy) {
        hook->definition.destroy(hook->definition.context);
    }
    module_hook_unref(hook);
}

void module_hooks_drop_removed(shoal_module *module)
{
    size_t i = 0;
    module->has_removed_hooks = false;
    while (i < module->n_hooks) {
        if (module->hooks[i]->is_removed) {
            drop_hook(module, i);
            i = 0;
        } else {
            i++;
        }
    }
}

void module_hooks_clear(shoal_module *module)
{
    /* From now on handles do not find the module, even if the functions that are called below use them. */
    for (size_t i = 0; i < module->n_hooks; i++) {
        module->hooks[i]->module = NULL;
    }
    while (module->n_hooks > 0) {
        drop_hook(module, module->n_hooks - 1);
    }
    mem_free(module->hooks);
}
