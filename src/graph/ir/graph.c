/* SPDX-License-Identifier: MIT */
/* Makes and frees graphs, keeps the insertion point, and adds nodes there. */
#include "graph/ir/graph.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "graph/ir/args.h"
#include "graph/ir/captured.h"
#include "graph/ir/edit.h"
#include "graph/ir/names.h"
#include "graph/ir/observer.h"
#include "graph/ir/order.h"
#include "graph/ir/uses.h"

/* Making and freeing ----------------------------------------------------------------------------------- */

shoal_status shoal_graph_create(shoal_graph **graph_out)
{
    error_clear();
    if (!graph_out) {
        return error_set(SHOAL_ERR_INVALID, "graph_create: graph_out is NULL");
    }
    struct shoal_graph *graph = mem_alloc_zeroed(1, sizeof(*graph));
    if (!graph) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = names_create(&graph->names);
    if (status != SHOAL_OK) {
        mem_free(graph);
        return status;
    }
    graph->point.is_after = true;
    *graph_out = graph;
    return SHOAL_OK;
}

void shoal_graph_free(shoal_graph *graph)
{
    if (!graph) {
        return;
    }
    GRAPH_EACH(graph, node)
    {
        for (size_t i = 0; i < node->n_values; i++) {
            shoal_tensor_unref(node->values[i]);
        }
    }
    for (struct graph_group *group = graph->groups; group; group = group->next) {
        group_free_stand_in(group->stand_in);
        group_unref(group->bound);
    }
    captured_free(graph->captured);
    map_free(&graph->groups_by_name);
    graph_free_twins(graph);
    names_free(graph->names);
    slab_end(&graph->shapes);
    arena_free(&graph->arena);
    arena_free(&graph->nodes);
    mem_free(graph);
}

/* The insertion point ---------------------------------------------------------------------------------- */

shoal_insert_point shoal_graph_insert_point(const shoal_graph *graph)
{
    return graph ? graph->point : (shoal_insert_point){.node = NULL, .is_after = true};
}

shoal_status shoal_graph_set_insert_point(shoal_graph *graph, shoal_insert_point point)
{
    error_clear();
    if (!graph) {
        return error_set(SHOAL_ERR_INVALID, "graph_set_insert_point: graph is NULL");
    }
    if (point.node && point.node->graph != graph) {
        return error_set(SHOAL_ERR_INVALID, "graph_set_insert_point: node %s belongs to another graph",
                         point.node->name);
    }
    if (point.node && point.node->is_erased) {
        return error_set(SHOAL_ERR_INVALID, "graph_set_insert_point: node %s was erased", point.node->name);
    }
    graph->point = point;
    return SHOAL_OK;
}

/* Returns the node after which the new one is inserted; NULL if it becomes the first. */
static struct shoal_node *find_place(const struct shoal_graph *graph, const struct node_spec *spec)
{
    const shoal_insert_point *point = &graph->point;
    if (spec->kind == SHOAL_NODE_OUTPUT) {
        return graph->last;
    }
    if (!point->node) {
        return point->is_after ? graph->last : NULL;
    }
    return point->is_after ? point->node : point->node->prev;
}

/* Adding ----------------------------------------------------------------------------------------------- */

static shoal_status copy_target(struct shoal_graph *graph, const struct node_spec *spec,
                                struct shoal_node *node)
{
    if (spec->op) {
        node->target = spec->op->name; /* ops live as long as the process */
    } else if (spec->kind == SHOAL_NODE_CALL) {
        node->target = arena_string(&graph->arena, spec->target);
    } else {
        node->target = node->name;
    }
    return node->target ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status copy_values(struct shoal_graph *graph, const struct node_spec *spec,
                                struct shoal_node *node)
{
    if (spec->is_ready) {
        node->values = (shoal_tensor **)spec->values;
    } else {
        node->values = arena_alloc(&graph->arena, spec->n_values, sizeof(node->values[0]));
        if (!node->values) {
            return SHOAL_ERR_NO_MEMORY;
        }
        for (size_t i = 0; i < spec->n_values; i++) {
            node->values[i] = spec->values[i];
        }
    }
    node->n_values = spec->n_values;
    node->is_list = spec->is_list;
    node->is_alias = spec->op && edit_is_alias(spec->values, spec->n_values);
    return SHOAL_OK;
}

/* Does everything that can fail. */
static shoal_status prepare(struct shoal_graph *graph, const struct node_spec *spec,
                            struct shoal_node **node_out, struct uses *uses_out)
{
    if (!spec->is_ready) {
        TRY(args_check(graph, NULL, spec->op, spec->args, spec->n_args));
    }
    if (graph->n_ids == UINT32_MAX) {
        return error_set(SHOAL_ERR_INVALID,
                         "the graph has %u nodes already, which is the most that it can have", UINT32_MAX);
    }
    struct shoal_node *node = arena_alloc(&graph->nodes, 1, sizeof(*node));
    if (!node) {
        return SHOAL_ERR_NO_MEMORY;
    }
    node->graph = graph;
    node->kind = (uint8_t)spec->kind;
    node->op = spec->op;
    node->n_args = spec->n_args;
    node->unit = spec->kind == SHOAL_NODE_CALL ? graph->unit : NULL;
    TRY(args_copy(&graph->arena, spec->args, spec->n_args, &node->args));
    TRY(uses_collect(graph, &graph->arena, 0, node->args, node->n_args, uses_out));
    enum names_wish kind = spec->name ? NAMES_GIVEN : spec->op ? NAMES_OP : NAMES_TARGET;
    TRY(names_choose(graph->names, &graph->arena, spec->name ? spec->name : spec->target, kind, node));
    TRY(copy_target(graph, spec, node));
    TRY(copy_values(graph, spec, node));
    TRY(observer_make_created(graph, &node->origins));
    *node_out = node;
    return SHOAL_OK;
}

shoal_status graph_add(struct shoal_graph *graph, const struct node_spec *spec, struct shoal_node **node_out)
{
    struct shoal_node *node = NULL;
    struct uses uses;
    TRY(prepare(graph, spec, &node, &uses));
    node->id = graph->n_ids++;
    names_take(graph->names, node);
    order_insert_after(graph, node, find_place(graph, spec));
    uses_set(node, &uses);
    if (node->kind == SHOAL_NODE_OUTPUT) {
        graph->output = node;
    }
    observer_tell_created(node);
    if (node_out) {
        *node_out = node;
    }
    return SHOAL_OK;
}

/* Reading ---------------------------------------------------------------------------------------------- */

size_t shoal_graph_n_nodes(const shoal_graph *graph)
{
    return graph ? graph->n_nodes : 0;
}

shoal_node *shoal_graph_first(const shoal_graph *graph)
{
    return graph ? graph->first : NULL;
}

shoal_node *shoal_graph_last(const shoal_graph *graph)
{
    return graph ? graph->last : NULL;
}

shoal_node *shoal_graph_find(const shoal_graph *graph, const char *name)
{
    struct shoal_node *node = graph && name ? names_find(graph->names, name) : NULL;
    return node && !node->is_erased ? node : NULL;
}
