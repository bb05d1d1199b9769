/* SPDX-License-Identifier: MIT */
/* Gives guards to all modules of a tree. */
#include "base/mem.h"
#include "base/try.h"
#include "module/guard.h"
#include "module/module.h"

/* The modules of a tree. Each has room for the guards that it will get. */
struct listed {
    shoal_module **modules; /* borrowed: the tree holds them */
    size_t n_modules;
    size_t capacity;
    size_t n_guards;
};

static shoal_status list_module(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct listed *listed = context;
    (void)next;
    TRY(mem_grow((void **)&listed->modules, &listed->capacity, listed->n_modules + 1,
                 sizeof listed->modules[0]));
    TRY(module_guard_reserve(entry->module, listed->n_guards));
    listed->modules[listed->n_modules++] = entry->module;
    return SHOAL_OK;
}

/* All modules get the guards, or none. */
static shoal_status give_to_tree(shoal_module *root, struct module_guard *const *guards, size_t n_guards)
{
    struct listed listed = {.n_guards = n_guards};
    shoal_status status = shoal_module_walk(root, SHOAL_WALK_MODULES, list_module, &listed);
    for (size_t i = 0; status == SHOAL_OK && i < listed.n_modules; i++) {
        for (size_t k = 0; k < n_guards; k++) {
            module_guard_give(guards[k], listed.modules[i]);
        }
    }
    mem_free(listed.modules);
    return status;
}

shoal_status module_guard_tree(shoal_module *root, shoal_module_hook_function function, void *context,
                               struct module_guard **guard_out)
{
    struct module_guard *guard;
    TRY(module_guard_create(function, context, &guard));
    shoal_status status = give_to_tree(root, &guard, 1);
    if (status != SHOAL_OK) {
        module_guard_end(guard);
        return status;
    }
    *guard_out = guard;
    return SHOAL_OK;
}

shoal_status module_guard_child(const shoal_module *module, shoal_module *child)
{
    return module->n_guards > 0 ? give_to_tree(child, module->guards, module->n_guards) : SHOAL_OK;
}
