/* SPDX-License-Identifier: MIT */
#include "autograd/hook_list.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "autograd/saved.h"
#include "base/callback.h"
#include "base/changes.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/try.h"
#include "op/tracer.h"
#include "tensor/scope.h"

struct shoal_hook {
    _Atomic uint32_t references; /* the list's and the handle's */
    _Atomic bool is_removed;
    struct hook_function function;
    shoal_hook *next;
};

static void hook_unref(shoal_hook *hook)
{
    if (refcount_put(&hook->references)) {
        mem_free(hook);
    }
}

/* For a hook that is in no list any more. */
static void end_hook(shoal_hook *hook)
{
    if (hook->function.release) {
        hook->function.release(hook->function.context);
    }
    hook_unref(hook);
}

/* Empties the list before it calls release functions, because these may change the list again. */
void hook_list_clear(struct hook_list *list)
{
    shoal_hook *hook = list->first;
    list->first = NULL;
    list->last = NULL;
    while (hook) {
        shoal_hook *next = hook->next;
        end_hook(hook);
        hook = next;
    }
}

static void drop_removed(struct hook_list *list)
{
    shoal_hook **link = &list->first;
    list->last = NULL;
    while (*link) {
        shoal_hook *hook = *link;
        if (atomic_load(&hook->is_removed)) {
            *link = hook->next;
            end_hook(hook);
        } else {
            list->last = hook;
            link = &hook->next;
        }
    }
}

shoal_status hook_list_add(struct hook_list *list, const struct hook_function *function,
                           shoal_hook **hook_out)
{
    shoal_hook *hook = mem_alloc(sizeof(*hook));
    if (!hook) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *hook = (shoal_hook){.function = *function};
    atomic_init(&hook->references, hook_out ? 2 : 1);
    atomic_init(&hook->is_removed, false);
    if (list->n_running == 0) {
        drop_removed(list);
    }
    if (list->last) {
        list->last->next = hook;
    } else {
        list->first = hook;
    }
    list->last = hook;
    if (hook_out) {
        *hook_out = hook;
    }
    return SHOAL_OK;
}

/* A captured step that removes a hook which was there before it cannot do so again in each run. */
static void note_removal(const shoal_hook *hook)
{
    struct op_tracer *tracer = callback_is_capturing() ? op_capture_running() : NULL;
    bool is_own = hook->function.runs_in_captures || hook->function.runs_last; /* the library's */
    if (tracer && !is_own && hook->function.number <= tracer->latest_change) {
        tracer->capture->refuse(
            tracer,
            error_set(SHOAL_ERR_STATE,
                      "hook_remove: a captured step cannot remove a hook that was there before it: the graph "
                      "would not do it again"));
        error_clear();
    }
}

void shoal_hook_remove(shoal_hook *hook)
{
    if (hook) {
        atomic_store(&hook->is_removed, true);
        if (hook->function.number != 0) { /* it is on a leaf */
            (void)changes_note();
            note_removal(hook);
        }
        hook_unref(hook);
    }
}

/* Running ---------------------------------------------------------------------------------------------- */

static shoal_status check_replaced(const struct saved_tensor *before, const shoal_tensor *replaced)
{
    shoal_status status = saved_check_like(before, replaced);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "the gradient that a hook returned");
}

shoal_status hook_check_unchanged(const shoal_tensor *gradient, uint64_t version)
{
    if (shoal_tensor_version(gradient) == version) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "the hook changed its gradient in place, which others may share; it must "
                     "return a new tensor instead");
}

static shoal_status run_gradient_hook(const shoal_hook *hook, shoal_tensor **gradient)
{
    struct saved_tensor before;
    shoal_tensor *given = *gradient;
    uint64_t version = shoal_tensor_version(given);
    saved_note(&before, given);
    struct scope_callback callback = scope_callback_begin();
    shoal_tensor *replaced = hook->function.on_gradient(hook->function.context, given);
    TRY(scope_callback_end(callback, "the hook", shoal_scope_error()));
    TRY(hook_check_unchanged(given, version));
    if (!replaced) {
        return SHOAL_OK;
    }
    *gradient = replaced;
    return check_replaced(&before, replaced);
}

/* Runs those of the hooks up to `last` that run last, or the others. */
static shoal_status run_some(const struct hook_list *list, const shoal_hook *last, bool runs_last,
                             shoal_tensor **gradient)
{
    for (const shoal_hook *hook = list->first; hook; hook = hook->next) {
        if (!atomic_load(&hook->is_removed) && hook->function.runs_last == runs_last) {
            TRY(run_gradient_hook(hook, gradient));
        }
        if (hook == last) {
            break;
        }
    }
    return SHOAL_OK;
}

shoal_status hook_list_run_gradient(struct hook_list *list, shoal_tensor **gradient)
{
    const shoal_hook *last = list->last; /* hooks that are added meanwhile run the next time */
    if (!last) {
        return SHOAL_OK;
    }
    list->n_running++;
    shoal_status status = run_some(list, last, false, gradient);
    if (status == SHOAL_OK) {
        status = run_some(list, last, true, gradient);
    }
    list->n_running--;
    return status;
}

void hook_list_add_to_set(const struct hook_list *list, struct hook_set *set)
{
    for (const shoal_hook *hook = list->first; hook; hook = hook->next) {
        if (!atomic_load(&hook->is_removed)) {
            set->n_hooks++;
            set->newest = hook->function.number > set->newest ? hook->function.number : set->newest;
        }
    }
}

bool hook_list_has_program_hook(const struct hook_list *list)
{
    bool has_any = false;
    for (const shoal_hook *hook = list->first; hook; hook = hook->next) {
        has_any = has_any || (!atomic_load(&hook->is_removed) && !hook->function.runs_in_captures);
    }
    return has_any;
}

/* A hook of the program would run once, at the capture, and never again. */
static shoal_status check_capture(const struct hook_list *list, const shoal_tensor *leaf)
{
    const char *name = shoal_tensor_name(leaf);
    return hook_list_has_program_hook(list)
               ? error_set(SHOAL_ERR_STATE,
                           "%s has a hook that shoal_on_accumulated added, which a compiled step cannot run: "
                           "remove the hook, and do its work after the step",
                           name[0] ? name : "the leaf")
               : SHOAL_OK;
}

shoal_status hook_list_run_leaf(struct hook_list *list, shoal_tensor *leaf)
{
    if (callback_is_capturing()) {
        TRY(check_capture(list, leaf));
    }
    const shoal_hook *last = list->last;
    shoal_status status = SHOAL_OK;
    list->n_running++;
    for (shoal_hook *hook = last ? list->first : NULL; hook && status == SHOAL_OK; hook = hook->next) {
        if (!atomic_load(&hook->is_removed)) {
            struct scope_callback callback = scope_callback_begin();
            status = scope_callback_end(callback, "the hook",
                                        hook->function.on_accumulated(hook->function.context, leaf));
            status = status == SHOAL_OK ? shoal_scope_error() : status;
        }
        if (hook == last) {
            break;
        }
    }
    list->n_running--;
    return status;
}
