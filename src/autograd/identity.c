/* SPDX-License-Identifier: MIT */
/*
 * One node for several tensors. Its outputs share the storages of its inputs, so they count as views: an in-place
 * change of an output would not be recorded for the input.
 */
#include "autograd/identity.h"

#include "autograd/leaf.h"
#include "autograd/node.h"
#include "autograd/tape.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "op/dispatch.h"
#include "tensor/handle.h"
#include "tensor/scope.h"

struct identity_node {
    struct node node; /* first: a node's address is this one's */
    shoal_identity_hook hook;
    void *context;
    hook_release release; /* of the context; NULL if there is none, or the context is still the caller's */
};

/* So many outputs need no memory of their own while they are made: modules have few inputs. */
enum {
    N_FEW = 8
};

static const char *name_identity(const struct node *node)
{
    return "identity";
}

/* A gradient that the hook gets. It may replace the tensor, but not write to it. */
struct shown {
    shoal_tensor *gradient;
    uint64_t version;
};

static shoal_status run_hook(const struct identity_node *identity, shoal_tensor **gradients,
                             size_t n_gradients)
{
    struct shown *shown = scope_alloc(scope_current(), n_gradients * sizeof(shown[0]));
    if (!shown) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_gradients; i++) {
        shown[i] = (struct shown){.gradient = gradients[i], .version = shoal_tensor_version(gradients[i])};
    }
    struct scope_callback callback = scope_callback_begin();
    TRY(scope_callback_end(callback, "the hook", identity->hook(identity->context, gradients, n_gradients)));
    for (size_t i = 0; i < n_gradients; i++) {
        if (shown[i].gradient) {
            TRY(hook_check_unchanged(shown[i].gradient, shown[i].version));
        }
    }
    return SHOAL_OK;
}

static shoal_status run_identity(struct node *node, const bool *needs_gradient, shoal_tensor **gradients,
                                 shoal_tensor **input_gradients)
{
    const struct identity_node *identity = (const struct identity_node *)node;
    if (identity->hook) {
        TRY(run_hook(identity, gradients, node->n_outputs));
    }
    for (size_t i = 0; i < node->n_inputs; i++) {
        input_gradients[i] = gradients[i];
    }
    return SHOAL_OK;
}

static void release_identity(struct node *node)
{
    const struct identity_node *identity = (const struct identity_node *)node;
    if (identity->release) {
        identity->release(identity->context);
    }
}

static const struct node_kind identity_kind = {
    .tape = &autograd_tape, .name = name_identity, .backward = run_identity, .release = release_identity};

/* Fills in the node. outputs[i] is a new tensor with one reference, or NULL if the output is the input itself. */
static shoal_status wrap_inputs(struct node *node, shoal_tensor *const *inputs, shoal_tensor **outputs)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        if (inputs[i]) {
            TRY(op_check_current(inputs[i]));
        }
        if (inputs[i] && inputs[i]->history) {
            TRY(history_check_current(inputs[i]));
            TRY(leaf_detach(inputs[i], &outputs[i]));
            outputs[i]->is_detached = false;
            node_set_input(node, i, inputs[i]);
            node_set_output(node, i, outputs[i]);
        }
    }
    return SHOAL_OK;
}

/* The scope has room, so this cannot fail. */
static void hand_over(struct node *node, shoal_tensor *const *inputs, shoal_tensor **outputs)
{
    node_number(node);
    for (size_t i = 0; i < node->n_inputs; i++) {
        if (outputs[i]) {
            node_attach(node, i, outputs[i]);
            (void)scope_adopt(outputs[i]);
        } else {
            outputs[i] = inputs[i];
        }
    }
}

static shoal_status record(shoal_tensor *const *inputs, size_t n_inputs, const struct identity_hook *hook,
                           shoal_tensor **outputs)
{
    struct node *node =
        node_create(&identity_kind, sizeof(struct identity_node), n_inputs, n_inputs, 0, NULL);
    if (!node) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct identity_node *identity = (struct identity_node *)node;
    identity->hook = hook->function;
    identity->context = hook->context;
    shoal_status status = wrap_inputs(node, inputs, outputs);
    if (status == SHOAL_OK) {
        status = scope_reserve(scope_current(), n_inputs);
    }
    if (status == SHOAL_OK) {
        hand_over(node, inputs, outputs);
        identity->release = hook->release;
    } else {
        for (size_t i = 0; i < n_inputs; i++) {
            shoal_tensor_unref(outputs[i]);
        }
    }
    node_unref(node);
    return status;
}

static bool needs_record(shoal_tensor *const *inputs, size_t n_inputs)
{
    for (size_t i = 0; i < n_inputs; i++) {
        if (inputs[i] && inputs[i]->history) {
            return shoal_scope_has_grad();
        }
    }
    return false;
}

shoal_status shoal_identity(shoal_tensor *const *inputs, size_t n_inputs, shoal_identity_hook hook,
                            void *context, shoal_tensor **outputs_out)
{
    bool is_recorded;
    error_clear();
    return identity_over(inputs, n_inputs, &(struct identity_hook){.function = hook, .context = context},
                         outputs_out, &is_recorded);
}

shoal_status identity_hook_output(shoal_tensor **tensor, shoal_gradient_hook hook, void *context,
                                  hook_release release)
{
    if (leaf_of(*tensor)) {
        bool is_recorded;
        TRY(identity_over(tensor, 1, &(struct identity_hook){.function = NULL}, tensor, &is_recorded));
    }
    return hook_on_gradient(*tensor, hook, context, release, NULL);
}

shoal_status identity_over(shoal_tensor *const *inputs, size_t n_inputs, const struct identity_hook *hook,
                           shoal_tensor **outputs_out, bool *is_recorded_out)
{
    *is_recorded_out = false;
    TRY(scope_enter());
    if (n_inputs > 0 && (!inputs || !outputs_out)) {
        return error_set(SHOAL_ERR_INVALID, "identity: %s is NULL", inputs ? "outputs_out" : "inputs");
    }
    TRY(handle_check_list("identity: input", inputs, n_inputs));
    shoal_tensor *few[N_FEW] = {NULL};
    shoal_tensor **outputs = n_inputs <= N_FEW ? few : mem_alloc_zeroed(n_inputs, sizeof(outputs[0]));
    if (!outputs) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = SHOAL_OK;
    bool is_recorded = needs_record(inputs, n_inputs);
    if (is_recorded) {
        status = record(inputs, n_inputs, hook, outputs);
    }
    *is_recorded_out = is_recorded && status == SHOAL_OK;
    for (size_t i = 0; i < n_inputs && status == SHOAL_OK; i++) {
        outputs_out[i] = is_recorded ? outputs[i] : inputs[i];
    }
    if (outputs != few) {
        mem_free(outputs);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "identity");
}
