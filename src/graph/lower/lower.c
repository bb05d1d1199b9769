/* SPDX-License-Identifier: MIT */
/* The walk over a graph that makes the steps of a plan. graph/lower/lower.h says what the other files do. */
#include "graph/lower/lower.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "collective/rows.h"
#include "device/device.h"
#include "op/op.h"

#define DEFAULT_ONE_SHOT_BYTES 131072

/* Nodes ------------------------------------------------------------------------------------------------ */

static shoal_status lower_placeholder(struct shoal_lowering *lowering, struct shoal_node *node)
{
    struct shoal_plan *plan = lowering->plan;
    uint32_t number = lower_number(lowering, node->values[0]);
    TRY(lower_need_buffer(lowering, number));
    uint32_t buffer = lowering->storages[number].buffer;
    plan->buffers[buffer].index = (uint32_t)plan->n_inputs;
    plan->inputs[plan->n_inputs++] = buffer;
    return SHOAL_OK;
}

static shoal_status lower_start(struct shoal_lowering *lowering, struct shoal_node *node)
{
    struct window_gather *gather = lowering->nodes[node->id].gather;
    shoal_value *arguments;
    const struct lowering_entry *entry = lowering_find(node->op);
    if (gather) {
        TRY(lower_window_gather(lowering, gather));
    } else if (lowering->nodes[node->id].pack) {
        TRY(lower_packed_scatter(lowering, node));
    } else if (entry) {
        TRY(lower_registered(lowering, node, entry));
    } else {
        TRY(lower_box(lowering, node, &arguments));
        TRY(lower_find_row(node->op)(lowering, node, arguments));
    }
    flight_start(&lowering->flight, node);
    return SHOAL_OK;
}

/* A value that is computed directly in the input that it is copied to may have to write over its own argument. */
static const shoal_op *op_of(const struct shoal_lowering *lowering, const struct shoal_node *node)
{
    return lowering->nodes[node->id].is_in_place ? lower_in_place_twin(node->op) : node->op;
}

static shoal_status lower_kernel(struct shoal_lowering *lowering, struct shoal_node *node)
{
    shoal_value *arguments;
    shoal_tensor **outputs;
    if (node->op->index == OP_cat && lowering->nodes[node->id].has_slots) {
        return lower_cat(lowering, node);
    }
    if (node->op->index == OP_as_strided_scatter) {
        return lower_scatter(lowering, node);
    }
    TRY(lower_box(lowering, node, &arguments));
    TRY(lower_tensors(lowering, node, &outputs));
    TRY(lower_call(lowering, op_of(lowering, node), arguments, outputs, node->n_values));
    lowering->plan->steps[lowering->plan->n_steps - 1].group = lower_group(lowering, node);
    return SHOAL_OK;
}

/* A plan has one block of host memory: what a step makes on a device, or copies there, cannot be in it. */
static shoal_status check_device(const struct shoal_node *node)
{
    bool has_device = node->op->index == OP_empty || node->op->index == OP_zeros ||
                      node->op->index == OP_full || node->op->index == OP_to_device;
    for (size_t i = 0; has_device && i < node->n_args; i++) {
        shoal_device device = SHOAL_CPU;
        TRY(node->args[i].kind == SHOAL_ARG_STRING ? device_find(node->args[i].as.string, &device)
                                                   : SHOAL_OK);
        if (device_has_data(device) && !device_is_host(device)) {
            return error_set(SHOAL_ERR_UNSUPPORTED, "device %s: plans and compiled steps are on the cpu",
                             device_name(device));
        }
    }
    return SHOAL_OK;
}

static shoal_status lower_call_node(struct shoal_lowering *lowering, struct shoal_node *node)
{
    uint32_t flags = node_flags(node);
    if (!node->op) {
        return error_set(SHOAL_ERR_INVALID,
                         "there is no op \"%.64s\" in this program, so the node cannot run", node->target);
    }
    TRY(check_device(node));
    if (lowering->nodes[node->id].is_absorbed || node->op->index == OP_empty) {
        return SHOAL_OK; /* the contents of `empty` are not defined, so nothing has to be done */
    }
    if ((flags & SHOAL_OP_WAIT) != 0) {
        return lower_wait(lowering, node);
    }
    if ((flags & SHOAL_OP_COLLECTIVE) != 0) {
        return lower_start(lowering, node);
    }
    if (lower_is_view(lowering, node)) {
        lower_pass_start(lowering, node);
        return SHOAL_OK;
    }
    return lower_kernel(lowering, node);
}

/* Outputs ---------------------------------------------------------------------------------------------- */

static size_t count_outputs(const shoal_arg *arg)
{
    size_t count = 0;
    if (arg->kind != SHOAL_ARG_LIST) {
        return arg->kind == SHOAL_ARG_NODE ? arg->as.node->n_values : 1;
    }
    for (size_t i = 0; i < arg->as.list.count; i++) {
        count += count_outputs(&arg->as.list.items[i]);
    }
    return count;
}

static shoal_status add_output(struct shoal_lowering *lowering, const struct shoal_node *node, size_t index)
{
    struct shoal_plan *plan = lowering->plan;
    shoal_tensor *tensor;
    TRY(lower_tensor(lowering, node, index, &tensor));
    uint32_t buffer = lower_buffer_of(lowering, tensor);
    if (plan->buffers[buffer].place == PLAN_POOL) {
        plan->buffers[buffer].place = PLAN_OUTPUT;
    }
    uint32_t number = lower_number(lowering, node->values[index]);
    plan->outputs[plan->n_outputs++] = (struct plan_output){.tensor = tensor,
                                                            .buffer = buffer,
                                                            .storage = number,
                                                            .offset = lowering->storages[number].offset,
                                                            .bytes = lowering->storages[number].bytes};
    return SHOAL_OK;
}

static shoal_status add_outputs(struct shoal_lowering *lowering, const shoal_arg *arg)
{
    struct shoal_plan *plan = lowering->plan;
    if (arg->kind == SHOAL_ARG_NODE) {
        for (size_t i = 0; i < arg->as.node->n_values; i++) {
            TRY(add_output(lowering, arg->as.node, i));
        }
    } else if (arg->kind == SHOAL_ARG_LIST) {
        for (size_t i = 0; i < arg->as.list.count; i++) {
            TRY(add_outputs(lowering, &arg->as.list.items[i]));
        }
    } else {
        plan->outputs[plan->n_outputs++] = (struct plan_output){.tensor = NULL, .buffer = PLAN_NONE};
    }
    return SHOAL_OK;
}

static shoal_status lower_output_node(struct shoal_lowering *lowering, struct shoal_node *node)
{
    struct shoal_plan *plan = lowering->plan;
    size_t n_outputs = count_outputs(&node->args[0]);
    TRY(lower_wait_all(lowering));
    plan->outputs = arena_alloc(&plan->arena, n_outputs + 1, sizeof *plan->outputs);
    if (!plan->outputs) {
        return SHOAL_ERR_NO_MEMORY;
    }
    return add_outputs(lowering, &node->args[0]);
}

/* The walk --------------------------------------------------------------------------------------------- */

static shoal_status lower_node(struct shoal_lowering *lowering, struct shoal_node *node)
{
    lowering->node = node;
    switch ((shoal_node_kind)node->kind) {
    case SHOAL_NODE_PLACEHOLDER:
        return lower_placeholder(lowering, node);
    case SHOAL_NODE_CONSTANT:
        return device_has_data(node->values[0]->storage->device)
                   ? SHOAL_OK
                   : error_set(SHOAL_ERR_INVALID, "the constant has no data");
    case SHOAL_NODE_CALL:
        return lower_call_node(lowering, node);
    case SHOAL_NODE_OUTPUT:
        return lower_output_node(lowering, node);
    }
    return SHOAL_OK;
}

static shoal_status make_inputs(struct shoal_lowering *lowering)
{
    struct shoal_plan *plan = lowering->plan;
    size_t n_inputs = 0;
    GRAPH_EACH(lowering->graph, node)
    {
        n_inputs += node->kind == SHOAL_NODE_PLACEHOLDER ? 1 : 0;
    }
    plan->inputs = arena_alloc(&plan->arena, n_inputs + 1, sizeof *plan->inputs);
    return plan->inputs ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status lower_graph(struct shoal_lowering *lowering)
{
    TRY(lower_scan(lowering));
    TRY(make_inputs(lowering));
    TRY(lower_find_windows(lowering));
    TRY(lower_find_packs(lowering));
    TRY(lower_find_slots(lowering));
    GRAPH_EACH(lowering->graph, node)
    {
        shoal_status status = lower_node(lowering, node);
        if (status != SHOAL_OK) {
            return error_prefix(status, "%%%s", node->name);
        }
    }
    TRY(lower_find_lives(lowering));
    TRY(lower_release_windows(lowering));
    TRY(plan_place(lowering->plan, !lowering->options->no_reuse));
    return lower_find_needs(lowering);
}

static void free_lowering(struct shoal_lowering *lowering)
{
    if (lowering->nodes) {
        GRAPH_EACH(lowering->graph, node)
        {
            lower_forget_here(lowering, node);
        }
    }
    effects_free(lowering->effects);
    flight_free(&lowering->flight);
    map_free(&lowering->numbers);
    map_free(&lowering->buffers);
    mem_free(lowering->nodes);
    mem_free(lowering->storages);
    mem_free(lowering->write_places);
    mem_free(lowering->starts);
    mem_free(lowering->details);
    arena_free(&lowering->scratch);
}

shoal_status plan_lower(const shoal_graph *graph, const shoal_compile_options *options,
                        const struct plan_target *target, struct shoal_plan **plan_out)
{
    shoal_compile_options complete = *options;
    struct shoal_lowering lowering = {.graph = graph, .options = &complete, .target = target};
    if (complete.one_shot_max_bytes == 0) {
        complete.one_shot_max_bytes = DEFAULT_ONE_SHOT_BYTES;
    }
    collective_hand_in();
    if (!graph->output) {
        return error_set(SHOAL_ERR_STATE, "the graph has no output");
    }
    TRY(plan_make(&lowering.plan));
    shoal_status status = lower_graph(&lowering);
    free_lowering(&lowering);
    if (status != SHOAL_OK) {
        plan_destroy(lowering.plan);
        return status;
    }
    *plan_out = lowering.plan;
    return SHOAL_OK;
}
