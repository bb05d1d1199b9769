/* SPDX-License-Identifier: MIT */
/* Hooks around forward: adding, removing and running them. */
#include "base/error.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "module/hook_list.h"
#include "module/module.h"
#include "tensor/scope.h"

/* Adding and removing ---------------------------------------------------------------------------------- */

static bool is_place(shoal_hook_place place)
{
    return place == SHOAL_HOOK_IN_ORDER || place == SHOAL_HOOK_FIRST || place == SHOAL_HOOK_LAST;
}

static shoal_status read_definition(const shoal_module_hook_definition *given,
                                    shoal_module_hook_definition *known)
{
    TRY(struct_size_read("definition", given, sizeof(size_t), known, sizeof(*known)));
    if (!known->pre_forward && !known->post_forward && !known->failed_forward) {
        return error_set(SHOAL_ERR_INVALID, "pre_forward, post_forward and failed_forward are NULL");
    }
    if (!is_place(known->pre_place) || !is_place(known->post_place)) {
        return error_set(SHOAL_ERR_INVALID, "%s is %d, which is none of SHOAL_HOOK_*",
                         is_place(known->pre_place) ? "post_place" : "pre_place",
                         (int)(is_place(known->pre_place) ? known->post_place : known->pre_place));
    }
    return SHOAL_OK;
}

static shoal_status add_hook(shoal_module *module, const shoal_module_hook_definition *given,
                             shoal_module_hook **hook_out)
{
    shoal_module_hook_definition known;
    TRY(read_definition(given, &known));
    TRY(module_check_change(module, "a hook"));
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
    module_note_change(module, "a hook", NULL, "was added");
    if (hook_out) {
        *hook_out = hook;
    }
    return SHOAL_OK;
}

shoal_status shoal_module_add_hook(shoal_module *module, const shoal_module_hook_definition *definition,
                                   shoal_module_hook **hook_out)
{
    if (!module) {
        return error_prefix(error_null("module"), "module_add_hook");
    }
    error_clear();
    shoal_status status = add_hook(module, definition, hook_out);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "module_add_hook");
}

void shoal_module_hook_remove(shoal_module_hook *hook)
{
    if (!hook) {
        return;
    }
    shoal_module *module = hook->module;
    hook->is_removed = true;
    if (module) {
        module_note_removal(module, "a hook");
    }
    /* Relaxed: changing a module is for one thread at a time, so the calls counted are this thread's. */
    if (module && atomic_load_explicit(&module->n_running, memory_order_relaxed) > 0) {
        module->has_removed_hooks = true;
    } else if (module) {
        (void)shoal_module_ref(module);
        module_hooks_drop_removed(module);
        shoal_module_unref(module);
    }
    module_hook_unref(hook);
}

/* Running ---------------------------------------------------------------------------------------------- */

static const char *const time_names[] = {
    [PRE_FORWARD] = "a pre-forward hook", [POST_FORWARD] = "a post-forward hook"};

/* All outputs must be set: later hooks and the caller use them. */
static shoal_status check_outputs(const shoal_forward_call *call)
{
    for (size_t i = 0; i < call->n_outputs; i++) {
        if (!call->outputs[i]) {
            return error_set(SHOAL_ERR_INVALID, "it set output %zu to NULL", i);
        }
    }
    return SHOAL_OK;
}

/*
 * Call after a function of the program that returned `status`. If the scope has an error, that is the cause and
 * replaces the status. An error gets `what` in front, and the scope keeps it.
 */
static shoal_status settle(shoal_status status, const char *what)
{
    struct scope *scope = scope_current();
    if (scope->status != SHOAL_OK) {
        status = shoal_scope_error();
        scope->status = SHOAL_OK; /* it is set again below, with `what` in front */
    }
    return status == SHOAL_OK ? SHOAL_OK : scope_fail(error_prefix(status, "%s", what));
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
    return settle(status, time_names[time]);
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

void module_run_failure_hooks(shoal_module *module, uint64_t n_ever, const shoal_forward_call *call)
{
    for (size_t i = module->n_hooks; i > 0; i--) {
        const shoal_module_hook *hook = module->hooks[i - 1];
        if (hook->number < n_ever && !hook->is_removed && hook->definition.failed_forward) {
            struct scope_callback callback = scope_callback_begin();
            hook->definition.failed_forward(hook->definition.context, call);
            (void)!scope_callback_end(callback, "it", SHOAL_OK);
        }
    }
}
