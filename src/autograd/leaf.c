/* SPDX-License-Identifier: MIT */
/*
 * Leaves and their gradients.
 *
 * A leaf keeps its gradient as a view without history, which it makes itself. If it kept the tensor that it was given,
 * that tensor could later get a history by an in-place op, and leaf, gradient and record would keep each other alive.
 */
#include "autograd/leaf.h"

#include <string.h>

#include "autograd/tape.h"
#include "base/changes.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/device.h"
#include "op/tracer.h"
#include "tensor/handle.h"
#include "tensor/scope.h"

static void end_leaf(struct tensor_history *history)
{
    struct leaf *leaf = (struct leaf *)history;
    hook_list_clear(&leaf->gradient_hooks);
    hook_list_clear(&leaf->accumulated_hooks);
    shoal_tensor_unref(leaf->gradient);
    mem_free(leaf);
}

shoal_status leaf_create(shoal_tensor *tensor)
{
    struct leaf *leaf = mem_alloc_zeroed(1, sizeof(*leaf));
    if (!leaf) {
        return SHOAL_ERR_NO_MEMORY;
    }
    leaf->history.base = (struct tensor_history){.tape = &autograd_tape, .destroy = end_leaf};
    leaf->history.is_leaf = true;
    leaf->number = changes_note();
    tensor->history = &leaf->history.base;
    return SHOAL_OK;
}

shoal_status leaf_detach(shoal_tensor *tensor, shoal_tensor **detached_out)
{
    TRY(tensor_create_alias(tensor, detached_out));
    (*detached_out)->is_detached = true;
    return SHOAL_OK;
}

shoal_status leaf_keep_gradient(struct leaf *leaf, shoal_tensor *gradient)
{
    shoal_tensor *kept = NULL;
    if (gradient) {
        TRY(leaf_detach(gradient, &kept));
    }
    shoal_tensor_unref(leaf->gradient);
    leaf->gradient = kept;
    return SHOAL_OK;
}

void leaf_put_back_gradient(shoal_tensor *tensor, shoal_tensor *gradient)
{
    struct leaf *leaf = leaf_of(tensor);
    shoal_tensor_unref(leaf ? leaf->gradient : gradient);
    if (leaf) {
        leaf->gradient = gradient;
    }
}

/* Public ----------------------------------------------------------------------------------------------- */

static shoal_status begin_requiring(shoal_tensor *tensor)
{
    if (!shoal_dtype_is_floating(tensor->dtype)) {
        return error_set(SHOAL_ERR_INVALID, "set_requires_grad: a tensor of %s has no gradient",
                         shoal_dtype_name(tensor->dtype));
    }
    if (!tensor->is_detached && atomic_load(&tensor->storage->has_history)) {
        return error_set(SHOAL_ERR_STATE,
                         "set_requires_grad: another tensor over the same storage was changed "
                         "in place and has a gradient; detach this one first");
    }
    return leaf_create(tensor);
}

static shoal_status end_requiring(shoal_tensor *tensor)
{
    struct leaf *leaf = leaf_of(tensor);
    if (leaf->visits) {
        return error_set(SHOAL_ERR_STATE,
                         "set_requires_grad: the tensor is a leaf of a backward pass that is running");
    }
    tensor->history = NULL;
    end_leaf(&leaf->history.base);
    (void)changes_note();
    return SHOAL_OK;
}

/* Results of recorded operations have a gradient for good, so a capture does not have to know. */
static void note_asked(const shoal_tensor *tensor)
{
    struct op_tracer *tracer = history_output(tensor) ? NULL : op_capture_running();
    shoal_status status = tracer ? tracer->capture->note_asked(tracer, (shoal_tensor *)tensor) : SHOAL_OK;
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
}

shoal_status shoal_set_requires_grad(shoal_tensor *tensor, bool is_required)
{
    if (!tensor) {
        return scope_fail_null("set_requires_grad", "tensor");
    }
    error_clear();
    if (handle_is_dead(tensor)) {
        return error_prefix(handle_fail(tensor), "set_requires_grad");
    }
    if (history_output(tensor)) {
        return error_set(
            SHOAL_ERR_STATE,
            "set_requires_grad: the tensor is the result of recorded operations; detach it first");
    }
    if (is_required == (tensor->history != NULL)) {
        return SHOAL_OK;
    }
    note_asked(tensor); /* a captured step depends on what it was before */
    return is_required ? begin_requiring(tensor) : end_requiring(tensor);
}

bool shoal_requires_grad(const shoal_tensor *tensor)
{
    if (!handle_is_alive(tensor)) {
        return false;
    }
    note_asked(tensor);
    return tensor->history;
}

bool shoal_is_leaf(const shoal_tensor *tensor)
{
    return handle_is_alive(tensor) && !history_output(tensor);
}

shoal_tensor *shoal_grad(const shoal_tensor *leaf)
{
    bool is_alive = handle_is_alive(leaf);
    struct leaf *history = is_alive ? leaf_of(leaf) : NULL;
    struct op_tracer *tracer = history ? op_capture_running() : NULL;
    shoal_status status = SHOAL_OK;
    if (tracer) { /* what the step does may depend on whether there is a gradient */
        status = tracer->capture->note_leaf(tracer, (shoal_tensor *)leaf);
    }
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
        return NULL;
    }
    if (is_alive && !history) {
        note_asked(leaf); /* it would have one if it were thawed */
    }
    return history ? history->gradient : NULL;
}

static shoal_status check_gradient(const shoal_tensor *leaf, const shoal_tensor *gradient)
{
    char leaf_text[TENSOR_TEXT_BYTES];
    char text[TENSOR_TEXT_BYTES];
    size_t shape_bytes = (size_t)leaf->layout.n_dims * sizeof(leaf->layout.shape[0]);
    if (gradient->history) {
        return error_set(SHOAL_ERR_INVALID, "set_grad: gradient requires a gradient itself; detach it first");
    }
    if (!shoal_dtype_is_floating(gradient->dtype) || gradient->layout.n_dims != leaf->layout.n_dims ||
        memcmp(gradient->layout.shape, leaf->layout.shape, shape_bytes) != 0 ||
        gradient->storage->device != leaf->storage->device) {
        return error_set(SHOAL_ERR_INVALID, "set_grad: gradient is %s on %s, but the leaf is %s on %s",
                         tensor_format(text, gradient), device_name(gradient->storage->device),
                         tensor_format(leaf_text, leaf), device_name(leaf->storage->device));
    }
    return SHOAL_OK;
}

shoal_status shoal_set_grad(shoal_tensor *leaf, shoal_tensor *gradient)
{
    if (!leaf) {
        return scope_fail_null("set_grad", "leaf");
    }
    error_clear();
    if (handle_is_dead(leaf) || (gradient && handle_is_dead(gradient))) {
        bool is_leaf = handle_is_dead(leaf);
        return error_prefix(handle_fail(is_leaf ? leaf : gradient), "set_grad: %s",
                            is_leaf ? "leaf" : "gradient");
    }
    struct leaf *history = leaf_of(leaf);
    if (!history && !gradient) {
        return SHOAL_OK; /* it has none */
    }
    if (!history) {
        return error_set(SHOAL_ERR_STATE, "set_grad: the tensor %s",
                         leaf->history ? "is a result, not a leaf" : "does not require a gradient");
    }
    if (gradient) {
        TRY(check_gradient(leaf, gradient));
    }
    struct op_tracer *tracer = op_capture_running();
    if (tracer) {
        TRY(tracer->capture->note_leaf(tracer, leaf));
    }
    return leaf_keep_gradient(history, gradient);
}

shoal_tensor *shoal_detach(shoal_tensor *tensor)
{
    shoal_tensor *detached = NULL;
    if (scope_enter() != SHOAL_OK) {
        return NULL;
    }
    shoal_status status;
    if (!tensor || handle_is_dead(tensor)) {
        status = tensor ? error_prefix(handle_fail(tensor), "detach")
                        : error_set(SHOAL_ERR_INVALID, "detach: tensor is NULL");
    } else {
        status = leaf_detach(tensor, &detached);
    }
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
        return NULL;
    }
    return scope_adopt(detached);
}
