/* SPDX-License-Identifier: MIT */
/* Adds hooks on the gradients of tensors to the right list. Hooks for the end of a backward pass are in backward.c. */
#include "autograd/hooks.h"

#include "autograd/leaf.h"
#include "base/callback.h"
#include "base/changes.h"
#include "base/error.h"
#include "base/try.h"
#include "op/tracer.h"
#include "tensor/handle.h"
#include "tensor/scope.h"

/* A hook that no backward pass can reach is an error, because it would silently never run. */
static shoal_status check_capture(const char *call, const shoal_tensor *tensor)
{
    const struct leaf *leaf = leaf_of(tensor);
    const struct op_tracer *tracer = leaf && callback_is_capturing() ? op_capture_running() : NULL;
    if (!tracer || leaf->number > tracer->latest_change) {
        return SHOAL_OK;
    }
    const char *name = shoal_tensor_name(tensor);
    return error_set(
        SHOAL_ERR_STATE,
        "%s: a captured step cannot add a hook to %s, which was there before it: the graph would not do it "
        "again",
        call, name[0] ? name : "a leaf");
}

static shoal_status check_will_run(const shoal_tensor *tensor)
{
    const struct node_output *output = history_output(tensor);
    const char *name = shoal_tensor_name(tensor);
    if (!tensor->history) {
        return error_set(SHOAL_ERR_STATE,
                         "on_gradient: tensor%s%s does not require a gradient: the hook would never run",
                         name[0] ? " " : "", name);
    }
    if (output && output->node->is_consumed) {
        return error_set(SHOAL_ERR_STATE,
                         "on_gradient: the record of the tensor, a result of %s, was used and freed by a "
                         "backward pass: the hook would never run",
                         output->node->kind->name(output->node));
    }
    if (tensor->has_landed) {
        return error_set(SHOAL_ERR_STATE,
                         "on_gradient: tensor%s%s is a shard, which gets its gradient from a reduction and "
                         "not from a backward pass, so the hook would never run; use shoal_on_accumulated",
                         name[0] ? " " : "", name);
    }
    return SHOAL_OK;
}

shoal_status shoal_on_gradient(shoal_tensor *tensor, shoal_gradient_hook hook, void *context,
                               shoal_hook **hook_out)
{
    if (!tensor) {
        return scope_fail_null("on_gradient", "tensor");
    }
    error_clear();
    if (handle_is_dead(tensor)) {
        return error_prefix(handle_fail(tensor), "on_gradient");
    }
    if (!hook) {
        return error_set(SHOAL_ERR_INVALID, "on_gradient: hook is NULL");
    }
    TRY(check_will_run(tensor));
    TRY(check_capture("on_gradient", tensor));
    return hook_on_gradient(tensor, hook, context, NULL, hook_out);
}

shoal_status hook_on_gradient(shoal_tensor *tensor, shoal_gradient_hook hook, void *context,
                              hook_release release, shoal_hook **hook_out)
{
    struct leaf *leaf = leaf_of(tensor);
    return hook_list_add(
        leaf ? &leaf->gradient_hooks : &history_output(tensor)->hooks,
        &(struct hook_function){
            .on_gradient = hook, .context = context, .release = release, .number = leaf ? changes_note() : 0},
        hook_out);
}

shoal_status hook_on_final_gradient(shoal_tensor *leaf, shoal_gradient_hook hook, void *context,
                                    shoal_hook **hook_out)
{
    return hook_list_add(
        &leaf_of(leaf)->gradient_hooks,
        &(struct hook_function){
            .on_gradient = hook, .context = context, .runs_last = true, .number = changes_note()},
        hook_out);
}

shoal_status shoal_on_accumulated(shoal_tensor *leaf, shoal_leaf_hook hook, void *context,
                                  shoal_hook **hook_out)
{
    if (!leaf) {
        return scope_fail_null("on_accumulated", "leaf");
    }
    error_clear();
    if (!hook) {
        return error_set(SHOAL_ERR_INVALID, "on_accumulated: hook is NULL");
    }
    if (handle_is_dead(leaf)) {
        return error_prefix(handle_fail(leaf), "on_accumulated");
    }
    struct leaf *history = leaf_of(leaf);
    if (!history) {
        return error_set(SHOAL_ERR_STATE, "on_accumulated: the tensor %s: the hook would never run",
                         leaf->history ? "is a result, not a leaf" : "does not require a gradient");
    }
    TRY(check_capture("on_accumulated", leaf));
    return hook_list_add(
        &history->accumulated_hooks,
        &(struct hook_function){.on_accumulated = hook, .context = context, .number = changes_note()},
        hook_out);
}

shoal_status hook_on_accumulated(shoal_tensor *leaf, shoal_leaf_hook hook, void *context,
                                 shoal_hook **hook_out)
{
    return hook_list_add(
        &leaf_of(leaf)->accumulated_hooks,
        &(struct hook_function){
            .on_accumulated = hook, .context = context, .runs_in_captures = true, .number = changes_note()},
        hook_out);
}

struct hook_set hooks_of_leaf(const shoal_tensor *tensor)
{
    struct hook_set set = {.n_hooks = 0};
    const struct leaf *leaf = leaf_of(tensor);
    if (leaf) {
        hook_list_add_to_set(&leaf->gradient_hooks, &set);
        hook_list_add_to_set(&leaf->accumulated_hooks, &set);
    }
    return set;
}
