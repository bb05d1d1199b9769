/* SPDX-License-Identifier: MIT */
/*
 * A guard of a tree: a function that is called before each call of a module of the tree, also of modules that come to
 * the tree later. Hooks could not do that: they are on modules that somebody knows.
 */
#include "module/guard.h"

#include "base/mem.h"
#include "base/refcount.h"
#include "module/module.h"

struct module_guard {
    _Atomic uint32_t references; /* of its owner, and of each module that has it */
    shoal_module_hook_function function;
    void *context;
    bool has_ended;
};

shoal_status module_guard_create(shoal_module_hook_function function, void *context,
                                 struct module_guard **guard_out)
{
    struct module_guard *guard = mem_alloc_zeroed(1, sizeof *guard);
    if (!guard) {
        return SHOAL_ERR_NO_MEMORY;
    }
    atomic_init(&guard->references, 1);
    guard->function = function;
    guard->context = context;
    *guard_out = guard;
    return SHOAL_OK;
}

static void unref(struct module_guard *guard)
{
    if (refcount_put(&guard->references)) {
        mem_free(guard);
    }
}

void module_guard_end(struct module_guard *guard)
{
    if (guard) {
        guard->has_ended = true;
        unref(guard);
    }
}

/* Forgets guards that have ended. */
static void drop_ended(shoal_module *module)
{
    size_t n_left = 0;
    for (size_t i = 0; i < module->n_guards; i++) {
        if (module->guards[i]->has_ended) {
            unref(module->guards[i]);
        } else {
            module->guards[n_left++] = module->guards[i];
        }
    }
    module->n_guards = n_left;
}

shoal_status module_guard_reserve(shoal_module *module, size_t n)
{
    drop_ended(module);
    return mem_grow((void **)&module->guards, &module->guards_capacity, module->n_guards + n,
                    sizeof(module->guards[0]));
}

void module_guard_give(struct module_guard *guard, shoal_module *module)
{
    size_t i = 0;
    while (i < module->n_guards && module->guards[i] != guard) {
        i++;
    }
    if (i == module->n_guards) {
        refcount_get(&guard->references);
        module->guards[module->n_guards++] = guard;
    }
}

shoal_status module_guard_call(const shoal_forward_call *call)
{
    const shoal_module *module = call->module;
    for (size_t i = 0; i < module->n_guards; i++) {
        const struct module_guard *guard = module->guards[i];
        if (!guard->has_ended) {
            return guard->function(guard->context, call);
        }
    }
    return SHOAL_OK;
}

void module_guard_clear(shoal_module *module)
{
    while (module->n_guards > 0) {
        unref(module->guards[--module->n_guards]);
    }
    mem_free(module->guards);
}
