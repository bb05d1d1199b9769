/* SPDX-License-Identifier: MIT */
/* Recognizes the collectives of FSDP, by one walk over the list each. */
#include "base/mem.h"
#include "graph/passes/bucket.h"
#include "op/op.h"

#define NO_INPUT 0u
#define MANY_INPUTS UINT32_MAX

/* Returns the placeholder that a node is computed from: its id + 1, NO_INPUT or MANY_INPUTS. */
static uint32_t find_source(const struct shoal_node *node, const uint32_t *sources)
{
    uint32_t source = NO_INPUT;
    if (node->kind == SHOAL_NODE_PLACEHOLDER) {
        return node->id + 1;
    }
    size_t n_inputs = node->op && node->op->index == OP_control_deps ? 1 : node->n_inputs; /* self alone */
    for (size_t i = 0; i < n_inputs; i++) {
        uint32_t other = sources[node->inputs[i]->id];
        if (other != NO_INPUT && source != other) {
            source = source == NO_INPUT ? other : MANY_INPUTS;
        }
    }
    return source;
}

shoal_status bucket_fsdp_gathers(const struct shoal_graph *graph, bool **is_accepted_out)
{
    bool *is_accepted = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(is_accepted[0]));
    uint32_t *sources = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(sources[0]));
    if (!is_accepted || !sources) {
        mem_free(is_accepted);
        mem_free(sources);
        return SHOAL_ERR_NO_MEMORY;
    }
    for (const struct shoal_node *node = graph->first; node; node = node->next) {
        sources[node->id] = find_source(node, sources);
        is_accepted[node->id] = sources[node->id] != NO_INPUT && sources[node->id] != MANY_INPUTS;
    }
    mem_free(sources);
    *is_accepted_out = is_accepted;
    return SHOAL_OK;
}

static bool leads_to_output(const struct shoal_node *node, const bool *leads)
{
    if (node->kind == SHOAL_NODE_OUTPUT) {
        return true;
    }
    for (const struct edge *edge = node->first_use; edge; edge = edge->next) {
        if (!leads[edge->user->id]) {
            return false;
        }
    }
    return node->n_inputs == 1 && node->n_users > 0;
}

shoal_status bucket_fsdp_scatters(const struct shoal_graph *graph, bool **is_accepted_out)
{
    bool *is_accepted = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(is_accepted[0]));
    if (!is_accepted) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (const struct shoal_node *node = graph->last; node; node = node->prev) {
        is_accepted[node->id] = leads_to_output(node, is_accepted);
    }
    *is_accepted_out = is_accepted;
    return SHOAL_OK;
}
