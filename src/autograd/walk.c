/* SPDX-License-Identifier: MIT */
/*
 * Walks the record. A walk first collects every node that its roots lead to, newest first, and counts how many edges
 * lead to each leaf. Most errors are found before anything has changed. Then it visits the nodes in that order:
 *
 *     hooks of the outputs -> gradient function -> add to what flows into older nodes and leaves
 *
 * All nodes that use a tensor are newer than the node that made it, so a node's gradients are complete when it is
 * visited. A leaf is complete when the last node that leads to it was visited or skipped. Its sum is then added to its
 * gradient at once, before older nodes are visited.
 *
 * Walks may run inside each other, so a node or leaf has a list with an entry for each walk.
 */
#include "autograd/walk.h"

#include "autograd/leaf.h"
#include "autograd/node.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "op/tracer.h"
#include "shoal/ops.h"
#include "tensor/scope.h"

/* A gradient that is being summed. */
struct slot {
    shoal_tensor *sum; /* one reference; NULL if nothing has arrived yet */
    bool is_ours;      /* made by adding: nobody else uses it */
};

struct node_visit {
    struct node_visit *next; /* of another walk, in node->visits */
    const struct walk *walk;
    struct node *node;   /* one reference */
    struct slot slots[]; /* one per output */
};

struct leaf_visit {
    struct leaf_visit *next; /* of another walk, in leaf->visits */
    const struct walk *walk;
    struct leaf_visit *newer; /* neighbours in walk->leaves */
    struct leaf_visit *older;
    shoal_tensor *tensor; /* one reference */
    size_t n_expected;    /* edges to it whose nodes were not visited or skipped yet */
    struct slot slot;
};

/* Slots ------------------------------------------------------------------------------------------------ */

static void slot_clear(struct slot *slot)
{
    shoal_tensor_unref(slot->sum);
    *slot = (struct slot){.sum = NULL};
}

/* In the order of arrival: the newest node's contribution is the first term. */
static shoal_status slot_add(struct slot *slot, shoal_tensor *gradient)
{
    if (!slot->sum) {
        slot->sum = shoal_tensor_ref(gradient);
        return SHOAL_OK;
    }
    if (slot->is_ours) {
        return shoal_add_(slot->sum, gradient) ? SHOAL_OK : shoal_scope_error();
    }
    shoal_tensor *sum = shoal_add(slot->sum, gradient);
    if (!sum) {
        return shoal_scope_error();
    }
    slot_clear(slot);
    *slot = (struct slot){.sum = shoal_tensor_ref(sum), .is_ours = true};
    return SHOAL_OK;
}

/* Visits ----------------------------------------------------------------------------------------------- */

static struct node_visit *find_node_visit(const struct walk *walk, const struct node *node)
{
    struct node_visit *visit = node->visits;
    while (visit && visit->walk != walk) {
        visit = visit->next;
    }
    return visit;
}

static struct leaf_visit *find_leaf_visit(const struct walk *walk, const shoal_tensor *tensor)
{
    struct leaf *leaf = leaf_of(tensor);
    struct leaf_visit *visit = leaf ? leaf->visits : NULL;
    while (visit && visit->walk != walk) {
        visit = visit->next;
    }
    return visit;
}

static void end_node_visit(struct node_visit *visit)
{
    struct node_visit **link = &visit->node->visits;
    while (*link != visit) {
        link = &(*link)->next;
    }
    *link = visit->next;
    for (size_t i = 0; i < visit->node->n_outputs; i++) {
        slot_clear(&visit->slots[i]);
    }
    node_unref(visit->node);
    mem_free(visit);
}

static void end_leaf_visit(struct walk *walk, struct leaf_visit *visit)
{
    struct leaf_visit **link = &leaf_of(visit->tensor)->visits;
    while (*link != visit) {
        link = &(*link)->next;
    }
    *link = visit->next;
    if (visit->older) {
        visit->older->newer = visit->newer;
    }
    if (visit->newer) {
        visit->newer->older = visit->older;
    } else {
        walk->leaves = visit->older;
    }
    slot_clear(&visit->slot);
    shoal_tensor_unref(visit->tensor);
    mem_free(visit);
}

/* Collecting ------------------------------------------------------------------------------------------- */

static void push_heap(struct walk *walk, struct node_visit *visit)
{
    size_t at = walk->n_heap++;
    while (at > 0 && walk->heap[(at - 1) / 2]->node->sequence < visit->node->sequence) {
        walk->heap[at] = walk->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    walk->heap[at] = visit;
}

static struct node_visit *pop_heap(struct walk *walk)
{
    struct node_visit *top = walk->heap[0];
    struct node_visit *moved = walk->heap[--walk->n_heap];
    size_t at = 0;
    size_t child = 1;
    while (child < walk->n_heap) {
        if (child + 1 < walk->n_heap &&
            walk->heap[child + 1]->node->sequence > walk->heap[child]->node->sequence) {
            child++;
        }
        if (walk->heap[child]->node->sequence < moved->node->sequence) {
            break;
        }
        walk->heap[at] = walk->heap[child];
        at = child;
        child = 2 * at + 1;
    }
    walk->heap[at] = moved;
    return top;
}

static shoal_status check_node(const struct walk *walk, const struct node *node)
{
    if (node->sequence < walk->oldest_captured) {
        return error_set(SHOAL_ERR_STATE,
                         "%s was recorded before this step was captured, and a captured backward pass cannot "
                         "use it; run its forward pass inside the step",
                         node->kind->name(node));
    }
    if (node->is_consumed) {
        return error_set(SHOAL_ERR_STATE,
                         "the record of %s was already used and freed by a backward pass; set keeps_graph "
                         "for that pass to run backward a second time",
                         node->kind->name(node));
    }
    if (node->sequence < walk->request->oldest_sequence) {
        return error_set(SHOAL_ERR_STATE,
                         "the function uses a result of %s that was recorded outside and is not one of its "
                         "inputs: its gradient would be lost",
                         node->kind->name(node));
    }
    if (node->visits && !walk->request->keeps_graph) {
        return error_set(
            SHOAL_ERR_STATE,
            "the record of %s is in use by the backward pass around this one, which needs keeps_graph",
            node->kind->name(node));
    }
    return SHOAL_OK;
}

static shoal_status reach_node(struct walk *walk, struct node *node)
{
    if (find_node_visit(walk, node)) {
        return SHOAL_OK;
    }
    TRY(check_node(walk, node));
    TRY(mem_grow((void **)&walk->heap, &walk->heap_capacity, walk->n_heap + 1, sizeof(walk->heap[0])));
    struct node_visit *visit =
        mem_alloc_zeroed(1, sizeof(*visit) + node->n_outputs * sizeof(visit->slots[0]));
    if (!visit) {
        return SHOAL_ERR_NO_MEMORY;
    }
    visit->walk = walk;
    visit->node = node_ref(node);
    visit->next = node->visits;
    node->visits = visit;
    push_heap(walk, visit);
    return SHOAL_OK;
}

static shoal_status reach_leaf(struct walk *walk, shoal_tensor *tensor)
{
    struct leaf *leaf = leaf_of(tensor);
    if (!leaf) {
        /* It no longer requires a gradient. */
        return SHOAL_OK;
    }
    struct leaf_visit *visit = find_leaf_visit(walk, tensor);
    if (!visit) {
        visit = mem_alloc_zeroed(1, sizeof(*visit));
        if (!visit) {
            return SHOAL_ERR_NO_MEMORY;
        }
        visit->walk = walk;
        visit->tensor = shoal_tensor_ref(tensor);
        visit->next = leaf->visits;
        leaf->visits = visit;
        visit->older = walk->leaves;
        if (walk->leaves) {
            walk->leaves->newer = visit;
        }
        walk->leaves = visit;
    }
    visit->n_expected++;
    return SHOAL_OK;
}

static shoal_status reach_inputs(struct walk *walk, const struct node *node)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        const struct node_input *input = &node->inputs[i];
        if (input->node) {
            TRY(reach_node(walk, input->node));
        } else if (input->leaf) {
            TRY(reach_leaf(walk, input->leaf));
        }
    }
    return SHOAL_OK;
}

shoal_status walk_collect(struct walk *walk)
{
    const struct op_tracer *capture = op_capture_running();
    walk->oldest_captured = capture ? capture->oldest_record : 0;
    for (size_t i = 0; i < walk->request->n_roots; i++) {
        shoal_tensor *root = walk->request->roots[i];
        struct node_output *output = history_output(root);
        TRY(output ? reach_node(walk, output->node) : reach_leaf(walk, root));
    }
    while (walk->n_heap > 0) {
        TRY(mem_grow((void **)&walk->order, &walk->order_capacity, walk->n_order + 1,
                     sizeof(walk->order[0])));
        struct node_visit *visit = pop_heap(walk);
        walk->order[walk->n_order++] = visit;
        TRY(reach_inputs(walk, visit->node));
    }
    return SHOAL_OK;
}

/* Leaves ----------------------------------------------------------------------------------------------- */

/* Ends the innermost scope; a failure becomes its error. */
static shoal_status end_scope(shoal_status status)
{
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return shoal_scope_end();
}

/*
 * Whether only this code, and perhaps the innermost scope, holds the tensor's memory: then it can become a gradient
 * without a copy.
 */
static bool is_exclusive(const shoal_tensor *tensor)
{
    const struct storage *storage = tensor->storage;
    uint32_t n_owners = tensor_is_owned_by(tensor, scope_current()) ? 2 : 1;
    return atomic_load(&tensor->references) == n_owners && atomic_load(&storage->references) == 1 &&
           tensor->is_contiguous && storage->bytes == tensor_bytes(tensor) &&
           !(storage->memory && storage->memory->given);
}

static shoal_status accumulate(shoal_tensor *tensor, shoal_tensor *gradient)
{
    struct leaf *leaf = leaf_of(tensor);
    struct op_tracer *tracer = op_capture_running();
    if (tracer) {
        TRY(tracer->capture->note_leaf(tracer, tensor));
    }
    if (leaf->gradient) {
        /* In place, so that pointers from shoal_grad stay valid. */
        return shoal_add_(leaf->gradient, shoal_to_dtype(gradient, leaf->gradient->dtype))
                   ? SHOAL_OK
                   : shoal_scope_error();
    }
    if (!is_exclusive(gradient)) {
        gradient = shoal_clone(gradient);
    }
    return gradient ? leaf_keep_gradient(leaf, gradient) : shoal_scope_error();
}

static shoal_status settle_leaf(const struct walk *walk, struct leaf_visit *visit)
{
    struct leaf *leaf = leaf_of(visit->tensor);
    shoal_tensor *gradient = visit->slot.sum;
    TRY(shoal_scope_set_grad(false));
    TRY(hook_list_run_gradient(&leaf->gradient_hooks, &gradient));
    if (gradient != visit->slot.sum) {
        (void)shoal_tensor_ref(gradient);
        slot_clear(&visit->slot);
        visit->slot.sum = gradient;
    }
    TRY(accumulate(visit->tensor, gradient));
    slot_clear(&visit->slot);
    leaf->last_backward = walk->number;
    return hook_list_run_leaf(&leaf->accumulated_hooks, visit->tensor);
}

/* Counts an edge to the leaf as done; the last one completes the leaf. */
static shoal_status pass_leaf(struct walk *walk, shoal_tensor *tensor)
{
    struct leaf_visit *visit = find_leaf_visit(walk, tensor);
    shoal_status status = SHOAL_OK;
    if (!visit || --visit->n_expected > 0) {
        return SHOAL_OK;
    }
    if (visit->slot.sum) {
        TRY(shoal_scope_begin());
        status = end_scope(settle_leaf(walk, visit));
        if (status != SHOAL_OK) {
            const char *name = shoal_tensor_name(tensor);
            status = error_prefix(status, "gradient of leaf%s%s", name[0] ? " " : "", name);
        }
    }
    end_leaf_visit(walk, visit);
    return status;
}

/* Visiting --------------------------------------------------------------------------------------------- */

/* Where the gradient of an input is summed; NULL if it is not needed. */
static struct slot *find_slot(const struct walk *walk, const struct node_input *input)
{
    if (input->node) {
        return &find_node_visit(walk, input->node)->slots[input->output];
    }
    struct leaf_visit *visit = input->leaf ? find_leaf_visit(walk, input->leaf) : NULL;
    return visit ? &visit->slot : NULL;
}

static shoal_status deliver(const struct walk *walk, const struct node *node, shoal_tensor *const *gradients)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        struct slot *slot = gradients[i] ? find_slot(walk, &node->inputs[i]) : NULL;
        if (!slot) {
            continue;
        }
        shoal_status status = saved_check_like(&node->inputs[i].saved, gradients[i]);
        if (status != SHOAL_OK) {
            return error_prefix(status, "the gradient for input %zu", i);
        }
        TRY(slot_add(slot, gradients[i]));
    }
    return SHOAL_OK;
}

/* Runs in the node's scope. */
static shoal_status propagate(const struct walk *walk, const struct node_visit *visit)
{
    struct node *node = visit->node;
    struct scope *scope = scope_current();
    TRY(shoal_scope_set_grad(false));
    /* Three lists in one block: gradients of outputs and of inputs, and which of the latter are wanted. */
    shoal_tensor **gradients =
        scope_alloc(scope, (node->n_outputs + node->n_inputs) * sizeof(gradients[0]) + node->n_inputs);
    if (!gradients) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_tensor **input_gradients = gradients + node->n_outputs;
    bool *needs_gradient = (bool *)(input_gradients + node->n_inputs);
    for (size_t i = 0; i < node->n_outputs; i++) {
        gradients[i] = visit->slots[i].sum;
        if (gradients[i]) {
            TRY(hook_list_run_gradient(&node->outputs[i].hooks, &gradients[i]));
        }
    }
    for (size_t i = 0; i < node->n_inputs; i++) {
        input_gradients[i] = NULL;
        needs_gradient[i] = find_slot(walk, &node->inputs[i]) != NULL;
    }
    error_clear();
    TRY(node->kind->backward(node, needs_gradient, gradients, input_gradients));
    TRY(shoal_scope_error());
    return deliver(walk, node, input_gradients);
}

static bool has_gradient(const struct node_visit *visit)
{
    for (size_t i = 0; i < visit->node->n_outputs; i++) {
        if (visit->slots[i].sum) {
            return true;
        }
    }
    return false;
}

/* A node that no gradient has reached is skipped; only its edges to leaves are counted. */
static shoal_status visit_node(struct walk *walk, struct node_visit *visit)
{
    struct node *node = visit->node;
    bool is_used = has_gradient(visit);
    if (is_used) {
        TRY(shoal_scope_begin());
        shoal_status status = end_scope(propagate(walk, visit));
        if (status != SHOAL_OK) {
            return error_prefix(status, "gradient of %s", node->kind->name(node));
        }
        /* Before leaves are completed, so that gradients which nobody else holds need no copy. */
        for (size_t i = 0; i < node->n_outputs; i++) {
            slot_clear(&visit->slots[i]);
        }
    }
    for (size_t i = 0; i < node->n_inputs; i++) {
        if (node->inputs[i].leaf) {
            TRY(pass_leaf(walk, node->inputs[i].leaf));
        }
    }
    if (is_used && !walk->request->keeps_graph) {
        node_consume(node);
    }
    return SHOAL_OK;
}

shoal_status walk_visit(struct walk *walk)
{
    for (size_t i = 0; i < walk->request->n_roots; i++) {
        if (leaf_of(walk->request->roots[i])) {
            TRY(pass_leaf(walk, walk->request->roots[i]));
        }
    }
    for (size_t i = 0; i < walk->n_order; i++) {
        TRY(visit_node(walk, walk->order[i]));
        end_node_visit(walk->order[i]);
        walk->order[i] = NULL;
    }
    return SHOAL_OK;
}

shoal_status walk_seed(struct walk *walk, size_t root, shoal_tensor *gradient)
{
    const shoal_tensor *tensor = walk->request->roots[root];
    struct node_output *output = history_output(tensor);
    if (output) {
        struct node_visit *visit = find_node_visit(walk, output->node);
        return slot_add(&visit->slots[output - output->node->outputs], gradient);
    }
    return slot_add(&find_leaf_visit(walk, tensor)->slot, gradient);
}

void walk_end(struct walk *walk, bool consumes)
{
    for (size_t i = 0; i < walk->n_order; i++) {
        if (walk->order[i]) {
            if (consumes) {
                node_consume(walk->order[i]->node);
            }
            end_node_visit(walk->order[i]);
        }
    }
    for (size_t i = 0; i < walk->n_heap; i++) {
        end_node_visit(walk->heap[i]);
    }
    while (walk->leaves) {
        if (!op_capture_running()) {
            leaf_of(walk->leaves->tensor)->n_failures++;
        }
        end_leaf_visit(walk, walk->leaves);
    }
    mem_free(walk->order);
    mem_free(walk->heap);
}
