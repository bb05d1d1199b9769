/* SPDX-License-Identifier: MIT */
#include "graph/captured.h"

#include <string.h>

#include "base/closable.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/handles.h"
#include "shoal/autograd.h"
#include "shoal/compile.h"
#include "tensor/tensor.h"

void captured_free(struct captured *captured)
{
    if (!captured) {
        return;
    }
    for (size_t i = 0; i < captured->n_inputs; i++) {
        shoal_tensor_unref(captured->inputs[i].tensor);
        shoal_tensor_unref(captured->inputs[i].source);
    }
    for (size_t i = 0; i < captured->n_leaves; i++) {
        shoal_tensor_unref(captured->leaves[i].leaf);
        shoal_tensor_unref(captured->leaves[i].gradient);
    }
    for (size_t i = 0; i < captured->n_dependences; i++) {
        op_dependence_unref(captured->dependences[i].dependence);
    }
    for (size_t i = 0; i < captured->n_parts; i++) {
        shoal_tensor_unref(captured->parts[i].tensor);
    }
    mem_free(captured->dependences);
    mem_free(captured->parts);
    mem_free(captured->inputs);
    mem_free(captured->leaves);
    mem_free(captured->output_leaves);
    mem_free(captured);
}

bool captured_is_current(const struct captured *captured)
{
    size_t i = 0;
    while (i < captured->n_dependences &&
           op_dependence_state(captured->dependences[i].dependence) == captured->dependences[i].state) {
        i++;
    }
    size_t part = 0;
    while (part < captured->n_parts &&
           shoal_requires_grad(captured->parts[part].tensor) == captured->parts[part].needs_gradient) {
        part++;
    }
    return i == captured->n_dependences && part == captured->n_parts;
}

void captured_forget_input(const struct shoal_node *node)
{
    struct captured *captured = node->graph->captured;
    if (!captured || node->kind != SHOAL_NODE_PLACEHOLDER) {
        return;
    }
    size_t index = 0;
    for (const struct shoal_node *before = node->graph->first; before != node; before = before->next) {
        index += before->kind == SHOAL_NODE_PLACEHOLDER ? 1 : 0;
    }
    if (index >= captured->n_inputs) {
        return; /* the placeholder was added after the capture */
    }
    struct captured_input *input = &captured->inputs[index];
    shoal_tensor_unref(input->tensor);
    shoal_tensor_unref(input->source);
    captured->n_inputs--;
    memmove(input, input + 1, (captured->n_inputs - index) * sizeof(*input));
}

shoal_status captured_wait_for_sources(const struct shoal_graph *graph, shoal_tensor *const *inputs,
                                       size_t n_inputs)
{
    const struct captured *captured = graph->captured;
    for (size_t i = 0; captured && i < captured->n_inputs && i < n_inputs; i++) {
        const struct captured_input *input = &captured->inputs[i];
        bool is_awaited = input->source && inputs[i] == input->tensor;
        if (is_awaited && storage_has_fences(input->source->storage)) {
            TRY(storage_wait_writable_in(input->source->storage, tensor_span(input->source),
                                         /*overwrites=*/false));
        }
    }
    return SHOAL_OK;
}

shoal_status graph_bound_group(const struct graph_group *row, struct shoal_group **group_out)
{
    *group_out = row->bound;
    /* Every group begins with this (comm/group.h). */
    return row->bound ? closable_check((const struct closable *)row->bound) : SHOAL_OK;
}

shoal_tensor *shoal_graph_bound_input(const shoal_graph *graph, size_t index)
{
    const struct captured *captured = graph ? graph->captured : NULL;
    return captured && index < captured->n_inputs ? captured->inputs[index].tensor : NULL;
}

shoal_tensor *shoal_graph_bound_leaf(const shoal_graph *graph, size_t index)
{
    const struct captured *captured = graph ? graph->captured : NULL;
    if (!captured || index < captured->n_step_outputs) {
        return NULL;
    }
    index -= captured->n_step_outputs;
    return index < captured->n_output_leaves ? captured->output_leaves[index] : NULL;
}
