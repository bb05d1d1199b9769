/* SPDX-License-Identifier: MIT */
/*
 * Hooks around forward. A hook is counted: the module's list holds one reference and the handle given to the user
 * another, so either may go first. While a call of the module is in progress the list only grows; hooks that are
 * removed then are marked, and leave it when the last such call has ended.
 */
#include "base/error.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "module/module.h"
#include "tensor/scope.h"

struct shoal_module_hook {
    _Atomic uint32_t references; /* the list's and the handle's */
    shoal_module *module;        /* not counted; NULL: no longer in its list */
    uint64_t number;
    bool is_removed;
    shoal_module_hook_definition definition;
};

/* Adding and removing ---------------------------------------------------------------------------------- */

static bool is_place(shoal_hook_place place)
{
    return place == SHOAL_HOOK_IN_ORDER || place == SHOAL_HOOK_FIRST || place == SHOAL_HOOK_LAST;
}

static shoal_status read_definition(const shoal_module_hook_definition *given,
                                    shoal_module_hook_definition *known)
{
    TRY(struct_size_read("definition", given, sizeof(size_t), known, sizeof(*known)));
    if (!known->pre_forward && !known->post_forward) {
        return error_set(SHOAL_ERR_INVALID, "pre_forward and post_forward are NULL");
    }
    if (!is_place(known->pre_place) || !is_place(known->post_place)) {
        return error_set(SHOAL_ERR_INVALID, "%s %d is no place",
                         is_place(known->pre_place) ? "post_place" : "pre_place",
                         (int)(is_place(known->pre_place) ? known->post_place : known->pre_place));
    }
    return SHOAL_OK;
}

static shoal_status add_hook(shoal_module *module, const shoal_module_hook_definition *given,
                             shoal_module_hook **hook_out)
{
    shoal_module_hook_definition known;
    if (!module) {
        return error_set(SHOAL_ERR_INVALID, "module is NULL");
    }
    TRY(read_definition(given, &known));
    TRY(mem_grow((void **)&module->hooks, &module->hooks_capacity, module->n_hooks + 1,
                 sizeof(module->hooks[0])));
    shoal_module_hook *hook = mem_alloc_zeroed(1, sizeof(*hook));
    if (!hook) {
        return SHOAL_ERR_NO_MEMORY;
    }
    atomic_init(&hook->references, hook_out ? 2 : 1);
    hook->module = module;
    hook->number = module->n_hooks_ever++;
    hook->definition = known;
    module->hooks[module->n_hooks++] = hook;
    if (hook_out) {
        *hook_out = hook;
    }
    return SHOAL_OK;
}

shoal_status shoal_module_add_hook(shoal_module *module, const shoal_module_hook_definition *definition,
                                   shoal_module_hook **hook_out)
{
    error_clear();
    shoal_status status = add_hook(module, definition, hook_out);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "module_add_hook");
}

static void hook_unref(shoal_module_hook *hook)
{
    if (refcount_put(&hook->references)) {
        mem_free(hook);
    }
}

/* Out of the list, which is whole before the user's function runs: that may come back here. */
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
    hook_unref(hook);
}

void module_drop_removed_hooks(shoal_module *module)
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

void shoal_module_hook_remove(shoal_module_hook *hook)
{
    if (!hook) {
        return;
    }
    shoal_module *module = hook->module;
    hook->is_removed = true;
    /* Relaxed: changing a module is for one thread at a time, so the calls counted are this thread's. */
    if (module && atomic_load_explicit(&module->n_running, memory_order_relaxed) > 0) {
        module->has_removed_hooks = true;
    } else if (module) {
        (void)shoal_module_ref(module);
        module_drop_removed_hooks(module);
        shoal_module_unref(module);
    }
    hook_unref(hook);
}

void module_clear_hooks(shoal_module *module)
{
    /* Handles must not find the module any more, whatever the functions below do with them. */
    for (size_t i = 0; i < module->n_hooks; i++) {
        module->hooks[i]->module = NULL;
    }
    while (module->n_hooks > 0) {
        drop_hook(module, module->n_hooks - 1);
    }
    mem_free(module->hooks);
}

/* Running ---------------------------------------------------------------------------------------------- */

static const char *const time_names[] = {
    [PRE_FORWARD] = "a pre-forward hook", [POST_FORWARD] = "a post-forward hook"};

/* Hooks that follow, and the caller, count on all outputs. */
static shoal_status check_outputs(const shoal_forward_call *call)
{
    for (size_t i = 0; i < call->n_outputs; i++) {
        if (!call->outputs[i]) {
            return error_set(SHOAL_ERR_INVALID, "it took output %zu away", i);
        }
    }
    return SHOAL_OK;
}

static shoal_status run_hook(const shoal_module_hook *hook, enum hook_time time,
                             const shoal_forward_call *call)
{
    const shoal_module_hook_definition *definition = &hook->definition;
    struct scope *scope = scope_current();
    bool has_grad = scope->has_grad;
    struct scope_callback callback = scope_callback_begin();
    shoal_status status = time == PRE_FORWARD ? definition->pre_forward(definition->context, call)
                                              : definition->post_forward(definition->context, call);
    status = scope_callback_end(callback, "it", status);
    scope->has_grad = has_grad;
    if (status == SHOAL_OK && scope->status == SHOAL_OK && time == POST_FORWARD) {
        status = check_outputs(call);
    }
    return module_settle(status, time_names[time]);
}

static bool runs_at(const shoal_module_hook *hook, enum hook_time time, shoal_hook_place place)
{
    const shoal_module_hook_definition *definition = &hook->definition;
    return time == PRE_FORWARD ? definition->pre_forward && definition->pre_place == place
                               : definition->post_forward && definition->post_place == place;
}

shoal_status module_run_hooks(shoal_module *module, enum hook_time time, uint64_t n_ever,
                              const shoal_forward_call *call)
{
    static const shoal_hook_place places[] = {SHOAL_HOOK_FIRST, SHOAL_HOOK_IN_ORDER, SHOAL_HOOK_LAST};
    if (module->n_hooks == 0) {
        return SHOAL_OK;
    }
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        for (size_t j = 0; j < module->n_hooks && module->hooks[j]->number < n_ever; j++) {
            const shoal_module_hook *hook = module->hooks[j];
            if (!hook->is_removed && runs_at(hook, time, places[i])) {
                TRY(run_hook(hook, time, call));
            }
        }
    }
    return SHOAL_OK;
}
