/* SPDX-License-Identifier: MIT */
/*
 * Lowerings that a program registers: the registry, and the calls that such a lowering can make. Entries are only
 * added, so a pointer to one stays valid, and readers need no lock.
 *
 * A call that a lowering makes is lowered as if it were a node. This node is not in the graph. It has the name and the
 * place of the node that is being lowered, and an id after those of all nodes.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "graph/ir/args.h"
#include "graph/ir/boxing.h"
#include "graph/lower/lower.h"
#include "graph/ir/twins.h"
#include "op/dispatch.h"
#include "op/op.h"
#include "tensor/scope.h"

/* The registry ----------------------------------------------------------------------------------------- */

struct lowering_entry {
    const shoal_op *op;
    shoal_lowering_function lower;
    void *context;
    _Atomic(struct lowering_entry *) next;
};

static _Atomic(struct lowering_entry *) first_entry;
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER; /* taken by writers only */

static struct lowering_entry *follow(_Atomic(struct lowering_entry *) *link)
{
    /* Acquire: pairs with the release store in append, which comes after the entry was filled in. */
    return atomic_load_explicit(link, memory_order_acquire);
}

const struct lowering_entry *lowering_find(const shoal_op *op)
{
    if (op_is_builtin(op)) {
        return NULL;
    }
    struct lowering_entry *entry = follow(&first_entry);
    while (entry && entry->op != op) {
        entry = follow(&entry->next);
    }
    return entry;
}

/* The lock is held. */
static shoal_status append(struct lowering_entry *entry)
{
    if (lowering_find(entry->op)) {
        return error_set(SHOAL_ERR_INVALID, "op %s has a lowering already", entry->op->name);
    }
    _Atomic(struct lowering_entry *) *link = &first_entry;
    for (struct lowering_entry *at; (at = follow(link)) != NULL;) {
        link = &at->next;
    }
    /* Release: pairs with the acquire load in follow. */
    atomic_store_explicit(link, entry, memory_order_release);
    return SHOAL_OK;
}

static shoal_status add_definition(const shoal_lowering_definition *definition)
{
    const shoal_op *op;
    if (!definition->op || !definition->lower) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", definition->op ? "lower" : "op");
    }
    TRY(shoal_op_find(definition->op, &op));
    if (op_is_builtin(op) || (op->flags & SHOAL_OP_COLLECTIVE) == 0) {
        return error_set(SHOAL_ERR_INVALID, "op %s %s", op->name,
                         op_is_builtin(op) ? "is built into the library" : "starts no communication");
    }
    struct lowering_entry *entry = mem_alloc_zeroed(1, sizeof *entry);
    if (!entry) {
        return SHOAL_ERR_NO_MEMORY;
    }
    entry->op = op;
    entry->lower = definition->lower;
    entry->context = definition->context;
    (void)pthread_mutex_lock(&registry_lock);
    shoal_status status = append(entry);
    (void)pthread_mutex_unlock(&registry_lock);
    if (status != SHOAL_OK) {
        mem_free(entry);
    }
    return status;
}

shoal_status shoal_lowering_register(const shoal_lowering_definition *given)
{
    shoal_lowering_definition definition;
    error_clear();
    TRY(struct_size_read("lowering_register: definition", given, sizeof(size_t), &definition,
                         sizeof(definition)));
    shoal_status status = add_definition(&definition);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "lowering_register");
}

/* Calls ------------------------------------------------------------------------------------------------ */

/* Looks for arguments that are neither the lowered node nor one of its inputs. */
struct node_check {
    const struct shoal_node *lowered;
    const struct shoal_node *stranger; /* such an argument; NULL if there is none so far */
};

static bool is_known(const struct shoal_node *lowered, const struct shoal_node *node)
{
    if (node == lowered) {
        return true;
    }
    for (size_t i = 0; i < lowered->n_inputs; i++) {
        if (lowered->inputs[i] == node) {
            return true;
        }
    }
    return false;
}

static void check_node(void *context, struct shoal_node *node)
{
    struct node_check *check = context;
    if (!is_known(check->lowered, node)) {
        check->stranger = node;
    }
}

static shoal_status check_call(const struct shoal_lowering *lowering, const shoal_op *op,
                               const shoal_arg *args)
{
    struct node_check check = {.lowered = lowering->node};
    TRY(args_check(lowering->graph, NULL, op, args, op->n_params));
    for (size_t i = 0; i < op->n_params; i++) {
        graph_visit_arg(&args[i], check_node, &check);
    }
    if (check.stranger) {
        return error_set(SHOAL_ERR_INVALID, "%%%s is not an input of %%%s", check.stranger->name,
                         lowering->node->name);
    }
    return op_is_in_place(op) ? SHOAL_OK
                              : error_set(SHOAL_ERR_INVALID, "%s writes none of its arguments", op->name);
}

/* Finds the values of the call, which must be tensors that exist already. The caller opens a scope for it, and owns the
   references in call->values. */
static shoal_status infer_values(struct shoal_lowering *lowering, struct shoal_node *call)
{
    struct boxing boxing;
    shoal_value values[OP_MAX_PARAMS] = {{.kind = SHOAL_VALUE_NONE}};
    shoal_value result = {.kind = SHOAL_VALUE_NONE};
    lower_box_meta(lowering, &boxing);
    TRY(boxing_box(&boxing, call->op, call->args, call->n_args, values));
    TRY(op_infer(call->op, values, call->n_args, &result));
    bool is_list = result.kind == SHOAL_VALUE_TENSORS;
    size_t count = is_list ? result.count : 1;
    call->values = arena_alloc(&lowering->scratch, count, sizeof(shoal_tensor *));
    if (!call->values) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        shoal_tensor *value = is_list ? result.as.tensors[i] : result.as.tensor;
        size_t number;
        if (!map_get(&lowering->numbers, map_key(twins_find(lowering->graph, value->storage)), &number)) {
            return error_set(SHOAL_ERR_INVALID, "%s returns a new tensor, for which the plan has no memory",
                             call->op->name);
        }
        call->values[call->n_values++] = shoal_tensor_ref(value);
    }
    return SHOAL_OK;
}

static void collect_input(void *context, struct shoal_node *node)
{
    struct shoal_node *call = context;
    call->inputs[call->n_inputs++] =
        node; /* a node that is named twice is there twice; count_input counted so */
}

static void count_input(void *context, struct shoal_node *node)
{
    (void)node;
    (*(size_t *)context)++;
}

static shoal_status collect_inputs(struct shoal_lowering *lowering, struct shoal_node *call)
{
    size_t n_inputs = 0;
    for (size_t i = 0; i < call->n_args; i++) {
        graph_visit_arg(&call->args[i], count_input, &n_inputs);
    }
    call->inputs = arena_alloc(&lowering->scratch, n_inputs + 1, sizeof(struct shoal_node *));
    if (!call->inputs) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < call->n_args; i++) {
        graph_visit_arg(&call->args[i], collect_input, call);
    }
    return SHOAL_OK;
}

/* Adds the steps of the call, which is complete. */
static shoal_status lower_made(struct shoal_lowering *lowering, struct shoal_node *call)
{
    struct shoal_node *lowered = lowering->node;
    struct lowered_node *state = &lowering->nodes[call->id];
    shoal_value *arguments;
    shoal_tensor **outputs;
    *state = (struct lowered_node){.place = lowering->nodes[lowered->id].place};
    TRY(lower_box(lowering, call, &arguments));
    if ((call->op->flags & SHOAL_OP_COLLECTIVE) == 0) {
        TRY(lower_tensors(lowering, call, &outputs));
        return lower_call(lowering, call->op, arguments, outputs, call->n_values);
    }
    lowering->node = call;
    shoal_status status = lower_find_row(call->op)(lowering, call, arguments);
    lowering->node = lowered;
    if (status == SHOAL_OK) {
        lowering->nodes[lowered->id].start = state->start;
    }
    return status;
}

static shoal_status call_in_scope(struct shoal_lowering *lowering, struct shoal_node *call)
{
    TRY(shoal_scope_begin());
    scope_current()->has_grad = false;
    scope_current()->tracer = NULL;
    shoal_status status = infer_values(lowering, call);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return shoal_scope_end();
}

static shoal_status make_call(struct shoal_lowering *lowering, const shoal_op *op, const shoal_arg *args,
                              size_t n_args)
{
    shoal_arg complete[OP_MAX_PARAMS];
    uint32_t start = lowering->nodes[lowering->node->id].start;
    TRY(args_complete(op, args, n_args, complete));
    TRY(check_call(lowering, op, complete));
    struct shoal_node call = {.graph = lowering->node->graph,
                              .id = lowering->graph->n_ids,
                              .kind = SHOAL_NODE_CALL,
                              .name = lowering->node->name,
                              .target = op->name,
                              .op = op,
                              .args = complete,
                              .n_args = op->n_params,
                              .is_list = op->returns_list};
    if (start > 0) {
        TRY(lower_end_start(lowering, &lowering->starts[start - 1]));
    }
    TRY(collect_inputs(lowering, &call));
    shoal_status status = call_in_scope(lowering, &call);
    if (status == SHOAL_OK) {
        status = lower_made(lowering, &call);
    }
    for (size_t i = 0; i < call.n_values; i++) {
        shoal_tensor_unref(call.values[i]);
    }
    return status;
}

shoal_status shoal_lowering_call(shoal_lowering *lowering, const shoal_op *op, const shoal_arg *args,
                                 size_t n_args)
{
    error_clear();
    if (!lowering || !op) {
        return error_set(SHOAL_ERR_INVALID, "lowering_call: %s is NULL", lowering ? "op" : "lowering");
    }
    shoal_status status = make_call(lowering, op, args, n_args);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "lowering_call(%s)", op->name);
}

/* Comm memory and waits -------------------------------------------------------------------------------- */

/* Gives the tensor of a node that the lowering may use: the lowered node, or one of its inputs. */
static shoal_status find_tensor(struct shoal_lowering *lowering, const struct shoal_node *node,
                                shoal_tensor **tensor_out)
{
    if (!lowering || !node) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", lowering ? "node" : "lowering");
    }
    if (!is_known(lowering->node, node) || node->n_values != 1) {
        return error_set(SHOAL_ERR_INVALID, "%%%s %s", node->name,
                         node->n_values == 1 ? "is not an input of the lowered node" : "gives a list");
    }
    return lower_tensor(lowering, node, 0, tensor_out);
}

bool shoal_lowering_can_realize(shoal_lowering *lowering, const shoal_node *node)
{
    shoal_tensor *tensor;
    error_clear();
    return find_tensor(lowering, node, &tensor) == SHOAL_OK &&
           lower_can_realize(lowering, tensor, lower_group(lowering, lowering->node));
}

shoal_status shoal_lowering_realize(shoal_lowering *lowering, const shoal_node *node)
{
    shoal_tensor *tensor = NULL;
    error_clear();
    shoal_status status = find_tensor(lowering, node, &tensor);
    if (status != SHOAL_OK) {
        return error_prefix(status, "lowering_realize");
    }
    uint32_t group = lower_group(lowering, lowering->node);
    if (!lower_can_realize(lowering, tensor, group)) {
        return error_set(SHOAL_ERR_STATE,
                         "lowering_realize: %%%s cannot be made in comm memory of this group", node->name);
    }
    lower_realize(lowering, tensor, group);
    return SHOAL_OK;
}

void shoal_lowering_mark_skip_wait(shoal_lowering *lowering)
{
    if (lowering) {
        lowering->skips_wait = true;
    }
}

bool shoal_lowering_should_skip_wait(const shoal_lowering *lowering, const shoal_node *node)
{
    if (!lowering || !node) {
        return false;
    }
    uint32_t start = lowering->nodes[node->id].start;
    return (node == lowering->node && lowering->skips_wait) ||
           (start > 0 && lowering->starts[start - 1].skips_wait);
}

/* Makes the node's last collective a blocking call. Those before it have been waited for. */
static void skip_wait(struct shoal_lowering *lowering, const struct shoal_node *node)
{
    uint32_t start = lowering->nodes[node->id].start;
    if (start > 0 && lowering->starts[start - 1].collective != PLAN_NONE) {
        lowering->starts[start - 1].skips_wait = true;
        lowering->plan->steps[lowering->starts[start - 1].step].kind = PLAN_BLOCK;
    }
}

shoal_status lower_registered(struct shoal_lowering *lowering, struct shoal_node *node,
                              const struct lowering_entry *entry)
{
    lowering->skips_wait = false;
    shoal_status status = entry->lower(lowering, node, entry->context);
    if (status != SHOAL_OK) {
        return error_prefix(status, "the lowering of %s", node->op->name);
    }
    if (lowering->skips_wait) {
        skip_wait(lowering, node);
        uint32_t start = lowering->nodes[node->id].start;
        /* Makes the copies that follow the collective. */
        return start > 0 ? lower_end_start(lowering, &lowering->starts[start - 1]) : SHOAL_OK;
    }
    return SHOAL_OK;
}
