/* SPDX-License-Identifier: MIT */
/*
 * Activation checkpointing: a node that keeps its inputs and a function instead of intermediate results.
 *
 *   forward   the function runs with gradients off; its outputs become outputs of one node
 *   backward  the function runs again with gradients on, over new leaves that share the memory of the saved inputs. A
 *             backward pass inside the running one computes the gradients of these leaves, which are those of the
 *             inputs, and adds to the gradients of other leaves that the function uses
 *
 * The node is recorded even if no input needs a gradient, because only the second run shows what the function
 * uses besides its inputs.
 */
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/node.h"
#include "autograd/tape.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "op/box.h"
#include "op/dispatch.h"
#include "op/tracer.h"
#include "tensor/handle.h"
#include "tensor/scope.h"

struct recompute_node {
    struct node node; /* first: a node's address is this one's */
    shoal_recompute_function function;
    void *context;
    void (*free_context)(void *context); /* NULL if there is none, or the context is still the caller's */
};

/* The second run --------------------------------------------------------------------------------------- */

/* Lists for the second run; they live in the node's scope. */
struct rerun {
    shoal_tensor **inputs;
    shoal_tensor **outputs;
    shoal_tensor **roots; /* outputs through which gradients flow, */
    shoal_tensor **root_gradients;
    size_t n_roots;
};

static const char *name_recompute(const struct node *node)
{
    return "recompute";
}

static void release_recompute(struct node *node)
{
    struct recompute_node *recompute = (struct recompute_node *)node;
    if (recompute->free_context) {
        recompute->free_context(recompute->context);
    }
}

static shoal_tensor **make_list(size_t count)
{
    shoal_tensor **list = scope_alloc(scope_current(), count * sizeof(list[0]));
    for (size_t i = 0; list && i < count; i++) {
        list[i] = NULL;
    }
    return list;
}

/* In a capture: makes an input of the second run depend on the gradients that the run is for. Otherwise a graph
   pass could move the second run into the forward pass, and no memory would be saved. */
static shoal_status hold_back(const struct node *node, shoal_tensor *const *gradients, shoal_tensor **input)
{
    shoal_value result;
    size_t n_after = 0;
    shoal_tensor **after = make_list(node->n_outputs);
    if (!after) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < node->n_outputs; i++) {
        if (gradients[i]) {
            after[n_after++] = gradients[i];
        }
    }
    const shoal_value arguments[] = {box_tensor(*input), box_tensors(after, n_after)};
    TRY(shoal_op_call(op_get(OP_control_deps), arguments, 2, &result));
    *input = result.as.tensor;
    return SHOAL_OK;
}

static shoal_status restore_inputs(const struct node *node, const bool *needs_gradient,
                                   shoal_tensor *const *gradients, shoal_tensor **inputs)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        if (!node->inputs[i].is_present) {
            continue;
        }
        shoal_status status = saved_restore(&node->inputs[i].saved, &inputs[i]);
        if (status != SHOAL_OK) {
            return error_prefix(status, "input %zu", i);
        }
        if (op_capture_running()) {
            TRY(hold_back(node, gradients, &inputs[i]));
        }
        if (needs_gradient[i]) {
            TRY(leaf_create(inputs[i]));
        }
    }
    return SHOAL_OK;
}

static shoal_status choose_roots(const struct node *node, shoal_tensor *const *gradients, struct rerun *rerun)
{
    for (size_t i = 0; i < node->n_outputs; i++) {
        if (!rerun->outputs[i]) {
            return error_set(SHOAL_ERR_STATE, "output %zu was not set in the second run", i);
        }
        shoal_status status = saved_check_like(&node->outputs[i].saved, rerun->outputs[i]);
        if (status != SHOAL_OK) {
            return error_prefix(status, "output %zu of the second run", i);
        }
        if (gradients[i] && rerun->outputs[i]->history) {
            rerun->roots[rerun->n_roots] = rerun->outputs[i];
            rerun->root_gradients[rerun->n_roots++] = gradients[i];
        }
    }
    return SHOAL_OK;
}

static shoal_status call_function(const struct recompute_node *recompute, shoal_tensor *const *inputs,
                                  shoal_tensor **outputs)
{
    const struct node *node = &recompute->node;
    struct scope_callback callback = scope_callback_begin();
    return scope_callback_end(
        callback, "the function",
        recompute->function(recompute->context, inputs, node->n_inputs, outputs, node->n_outputs));
}

/* Runs in a scope of its own inside the node's. */
static shoal_status run_again(struct node *node, const bool *needs_gradient, shoal_tensor *const *gradients,
                              struct rerun *rerun)
{
    const struct recompute_node *recompute = (const struct recompute_node *)node;
    struct backward_request request = {.is_part = true, .oldest_sequence = node_next_number()};
    TRY(shoal_scope_set_grad(true));
    TRY(restore_inputs(node, needs_gradient, gradients, rerun->inputs));
    TRY(call_function(recompute, rerun->inputs, rerun->outputs));
    TRY(shoal_scope_error());
    TRY(choose_roots(node, gradients, rerun));
    if (rerun->n_roots > 0) {
        request.roots = rerun->roots;
        request.gradients = rerun->root_gradients;
        request.n_roots = rerun->n_roots;
        TRY(backward_run(&request));
    }
    /* The leaves end with this scope, but their gradients are still needed. */
    for (size_t i = 0; i < node->n_inputs; i++) {
        rerun->inputs[i] = rerun->inputs[i] ? shoal_tensor_ref(shoal_grad(rerun->inputs[i])) : NULL;
    }
    return SHOAL_OK;
}

static shoal_status run_recompute(struct node *node, const bool *needs_gradient, shoal_tensor **gradients,
                                  shoal_tensor **input_gradients)
{
    struct rerun rerun = {.inputs = make_list(node->n_inputs),
                          .outputs = make_list(node->n_outputs),
                          .roots = make_list(node->n_outputs),
                          .root_gradients = make_list(node->n_outputs)};
    if (!rerun.inputs || !rerun.outputs || !rerun.roots || !rerun.root_gradients) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(shoal_scope_begin());
    shoal_status status = run_again(node, needs_gradient, gradients, &rerun);
    bool has_gradients = status == SHOAL_OK;
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    status = shoal_scope_end();
    for (size_t i = 0; has_gradients && i < node->n_inputs; i++) {
        if (rerun.inputs[i]) {
            input_gradients[i] = scope_adopt(rerun.inputs[i]);
        }
    }
    return status;
}

static const struct node_kind recompute_kind = {
    .tape = &autograd_tape, .name = name_recompute, .backward = run_recompute, .release = release_recompute};

/* The first run ---------------------------------------------------------------------------------------- */

/* Makes an output of the node from an output of the function. One that existed before the call counts as a view. */
static shoal_status wrap_output(shoal_tensor *made, size_t index, shoal_tensor **output_out)
{
    if (!made) {
        return error_set(SHOAL_ERR_INVALID, "the function did not set output %zu", index);
    }
    TRY(leaf_detach(made, output_out));
    (*output_out)->is_view = made->is_view || !tensor_is_owned_by(made, scope_current());
    return SHOAL_OK;
}

/* Runs in a scope of its own. `outputs` are new tensors with one reference each, which no scope owns. */
static shoal_status run_first(const struct recompute_node *recompute, shoal_tensor *const *inputs,
                              shoal_tensor **outputs)
{
    const struct node *node = &recompute->node;
    shoal_tensor **made = make_list(node->n_outputs);
    if (!made) {
        return SHOAL_ERR_NO_MEMORY;
    }
    bool will_record = scope_will_record();
    TRY(shoal_scope_set_grad(false));
    scope_current()->runs_again = will_record;
    TRY(call_function(recompute, inputs, made));
    TRY(shoal_scope_error());
    for (size_t i = 0; i < node->n_inputs; i++) {
        if (inputs[i] && shoal_tensor_version(inputs[i]) != node->inputs[i].saved.version) {
            return error_set(SHOAL_ERR_STATE,
                             "the function changed input %zu in place: it would not compute the same again",
                             i);
        }
    }
    for (size_t i = 0; i < node->n_outputs; i++) {
        TRY(wrap_output(made[i], i, &outputs[i]));
    }
    return SHOAL_OK;
}

static shoal_status run_in_scope(const struct recompute_node *recompute, shoal_tensor *const *inputs,
                                 shoal_tensor **outputs)
{
    TRY(shoal_scope_begin());
    shoal_status status = run_first(recompute, inputs, outputs);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return shoal_scope_end();
}

/* The scope has room, so this cannot fail. */
static void hand_over(struct node *node, shoal_tensor *const *outputs)
{
    bool has_grad = shoal_scope_has_grad();
    node_number(node);
    for (size_t i = 0; i < node->n_outputs; i++) {
        node_set_output(node, i, outputs[i]);
        if (has_grad && shoal_dtype_is_floating(outputs[i]->dtype)) {
            node_attach(node, i, outputs[i]);
        }
        (void)scope_adopt(outputs[i]);
    }
}

static shoal_status save_inputs(struct node *node, shoal_tensor *const *inputs)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        if (inputs[i]) {
            TRY(op_check_current(inputs[i]));
            TRY(history_check_current(inputs[i]));
            node_set_input(node, i, inputs[i]);
            saved_keep_data(&node->inputs[i].saved, inputs[i]->storage);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_call(shoal_recompute_function function, shoal_tensor *const *inputs,
                               size_t n_inputs, shoal_tensor **outputs_out, size_t n_outputs)
{
    if (!function || (!inputs && n_inputs > 0) || !outputs_out) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL",
                         !function     ? "function"
                         : outputs_out ? "inputs"
                                       : "outputs_out");
    }
    TRY(handle_check_list("input", inputs, n_inputs));
    return n_outputs > 0 ? SHOAL_OK : error_set(SHOAL_ERR_INVALID, "n_outputs is 0");
}

/* Outputs are written to a separate list first, because the caller's may be the list of inputs. */
static shoal_status call_first(struct recompute_node *recompute, shoal_tensor *const *inputs,
                               shoal_tensor **outputs)
{
    struct node *node = &recompute->node;
    TRY(save_inputs(node, inputs));
    shoal_status status = run_in_scope(recompute, inputs, outputs);
    if (status == SHOAL_OK) {
        status = scope_reserve(scope_current(), node->n_outputs);
    }
    if (status == SHOAL_OK) {
        hand_over(node, outputs);
        return SHOAL_OK;
    }
    for (size_t i = 0; i < node->n_outputs; i++) {
        shoal_tensor_unref(outputs[i]);
    }
    return status;
}

shoal_status shoal_recompute(shoal_recompute_function function, void *context,
                             void (*free_context)(void *context), shoal_tensor *const *inputs,
                             size_t n_inputs, shoal_tensor **outputs_out, size_t n_outputs)
{
    error_clear();
    TRY(scope_enter());
    shoal_status status = check_call(function, inputs, n_inputs, outputs_out, n_outputs);
    if (status != SHOAL_OK) {
        return error_prefix(status, "recompute");
    }
    shoal_tensor **outputs = mem_alloc_zeroed(n_outputs, sizeof(outputs[0]));
    struct recompute_node *recompute = (struct recompute_node *)node_create(
        &recompute_kind, sizeof(*recompute), n_inputs, n_outputs, 0, NULL);
    status = SHOAL_ERR_NO_MEMORY;
    if (outputs && recompute) {
        recompute->function = function;
        recompute->context = context;
        status = call_first(recompute, inputs, outputs);
    }
    if (status == SHOAL_OK) {
        /* From here on the node owns the context. It is freed at once if no output needs the node. */
        recompute->free_context = free_context;
        for (size_t i = 0; i < n_outputs; i++) {
            outputs_out[i] = outputs[i];
        }
    }
    mem_free(outputs);
    if (recompute) {
        node_unref(&recompute->node);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "recompute");
}
