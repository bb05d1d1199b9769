/* SPDX-License-Identifier: MIT */
#include "graph/ir/captured.h"

#include <stdio.h>
#include <string.h>

#include "base/changes.h"
#include "base/closable.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/lane/handles.h"
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
    for (size_t i = 0; i < captured->n_asked; i++) {
        shoal_tensor_unref(captured->asked[i].tensor);
    }
    for (size_t i = 0; i < captured->n_labels; i++) {
        mem_free(captured->labels[i].text);
    }
    for (size_t i = 0; i < captured->n_run_ends; i++) {
        captured->run_ends[i].release(captured->run_ends[i].context);
    }
    mem_free(captured->run_ends);
    mem_free(captured->labels);
    mem_free(captured->dependences);
    mem_free(captured->parts);
    mem_free(captured->asked);
    mem_free(captured->inputs);
    mem_free(captured->leaves);
    mem_free(captured->output_leaves);
    mem_free(captured);
}

shoal_status captured_agree(const struct captured *captured)
{
    for (size_t i = 0; i < captured->n_dependences; i++) {
        TRY(op_dependence_agree(captured->dependences[i].dependence));
    }
    return SHOAL_OK;
}

shoal_status captured_check_run_ends(const struct captured *captured)
{
    for (size_t i = 0; i < captured->n_run_ends; i++) {
        const struct op_run_end *end = &captured->run_ends[i];
        TRY(end->check ? end->check(end->context) : SHOAL_OK);
    }
    return SHOAL_OK;
}

shoal_status captured_begin_run(const struct captured *captured)
{
    for (size_t i = 0; i < captured->n_dependences; i++) {
        TRY(op_dependence_begin_run(captured->dependences[i].dependence));
    }
    return SHOAL_OK;
}

shoal_status captured_end_run(const struct captured *captured)
{
    for (size_t i = 0; i < captured->n_run_ends; i++) {
        TRY(captured->run_ends[i].run(captured->run_ends[i].context));
    }
    return SHOAL_OK;
}

static size_t find_other_dependence(const struct captured *captured)
{
    size_t i = 0;
    while (i < captured->n_dependences &&
           op_dependence_state(captured->dependences[i].dependence) == captured->dependences[i].state) {
        i++;
    }
    return i;
}

static const struct captured_part *find_other(const struct captured_part *parts, size_t n_parts)
{
    for (size_t i = 0; i < n_parts; i++) {
        if (shoal_requires_grad(parts[i].tensor) != parts[i].needs_gradient) {
            return &parts[i];
        }
    }
    return NULL;
}

/* A tensor that was frozen or thawed; NULL if none was. */
static const struct captured_part *find_other_part(const struct captured *captured)
{
    const struct captured_part *part = find_other(captured->parts, captured->n_parts);
    return part ? part : find_other(captured->asked, captured->n_asked);
}

static size_t find_other_hooks(const struct captured *captured)
{
    for (size_t i = 0; i < captured->n_leaves; i++) {
        const struct captured_leaf *leaf = &captured->leaves[i];
        struct hook_set now = {.n_hooks = 0};
        if (leaf->given == CAPTURED_NONE) {
            now = hooks_of_leaf(leaf->leaf);
        }
        if (now.n_hooks != leaf->hooks.n_hooks || now.newest != leaf->hooks.newest) {
            return i;
        }
    }
    return captured->n_leaves;
}

/* The state of wrappers depends on more than changes that are numbered, so dependences are always asked. */
bool captured_is_current(struct captured *captured)
{
    uint64_t latest = changes_latest();
    bool is_current = find_other_dependence(captured) == captured->n_dependences;
    if (is_current && captured->looked != latest) {
        is_current = !find_other_part(captured) && find_other_hooks(captured) == captured->n_leaves;
        captured->looked = is_current ? latest : captured->looked;
    }
    return is_current;
}

bool captured_has_gone(const struct captured *captured)
{
    for (size_t i = 0; i < captured->n_dependences; i++) {
        if (op_dependence_has_gone(captured->dependences[i].dependence, captured->dependences[i].state)) {
            return true;
        }
    }
    return false;
}

static const char *name_of(const shoal_tensor *tensor)
{
    const char *name = shoal_tensor_name(tensor);
    return name[0] ? name : "a tensor";
}

void captured_describe_change(const struct captured *captured, char *text, size_t text_bytes)
{
    size_t dependence = find_other_dependence(captured);
    const struct captured_part *part = find_other_part(captured);
    size_t leaf = find_other_hooks(captured);
    text[0] = '\0';
    if (dependence < captured->n_dependences) {
        op_dependence_describe(captured->dependences[dependence].dependence, text, text_bytes);
    } else if (part) {
        (void)snprintf(text, text_bytes, "%s was %s", name_of(part->tensor),
                       part->needs_gradient ? "frozen" : "thawed");
    } else if (leaf < captured->n_leaves) {
        (void)snprintf(text, text_bytes, "a hook on %s was added or removed",
                       name_of(captured->leaves[leaf].leaf));
    }
    if (!text[0]) {
        (void)snprintf(text, text_bytes, "a setting of a wrapped module, or a gradient, has changed");
    }
}

shoal_status captured_check_hooks(size_t index, const shoal_tensor *input)
{
    if (hooks_of_leaf(input).n_hooks == 0) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "input %zu (%s) has a hook on its gradient, which a compiled step cannot run: remove it",
                     index, name_of(input));
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
    /* Every group begins with this (comm/group/group.h). */
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
