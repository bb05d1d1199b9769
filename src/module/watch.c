/* SPDX-License-Identifier: MIT */
/*
 * A watch of a tree: a function that is called before each call of a module of the tree, also of modules that come to
 * the tree later. Hooks could not do that: they are on modules that somebody knows.
 */
#include "module/watch.h"

#include "base/mem.h"
#include "base/refcount.h"
#include "module/module.h"

struct module_watch {
    _Atomic uint32_t references; /* of its owner, and of each module that has it */
    shoal_module_hook_function function;
    void *context;
    bool has_ended;
};

shoal_status module_watch_create(shoal_module_hook_function function, void *context,
                                 struct module_watch **watch_out)
{
    struct module_watch *watch = mem_alloc_zeroed(1, sizeof *watch);
    if (!watch) {
        return SHOAL_ERR_NO_MEMORY;
    }
    atomic_init(&watch->references, 1);
    watch->function = function;
    watch->context = context;
    *watch_out = watch;
    return SHOAL_OK;
}

static void unref(struct module_watch *watch)
{
    if (watch && refcount_put(&watch->references)) {
        mem_free(watch);
    }
}

void module_watch_end(struct module_watch *watch)
{
    if (watch) {
        watch->has_ended = true;
        unref(watch);
    }
}

void module_watch_give(struct module_watch *watch, shoal_module *module)
{
    bool has_other = module->watch && !module->watch->has_ended;
    if (!has_other) {
        unref(module->watch);
        refcount_get(&watch->references);
        module->watch = watch;
    }
}

shoal_status module_watch_call(const shoal_forward_call *call)
{
    const struct module_watch *watch = call->module->watch;
    return watch && !watch->has_ended ? watch->function(watch->context, call) : SHOAL_OK;
}

void module_watch_clear(shoal_module *module)
{
    unref(module->watch);
    module->watch = NULL;
}
