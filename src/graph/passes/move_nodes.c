/* SPDX-License-Identifier: MIT */
/*
 * Moves several nodes to one place, after checking that the graph still computes the same. Each constraint
 * (graph/analysis/constraints.h) says that one node must stay before another. No constraint of a moved node may be broken.
 */
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/analysis/constraints.h"
#include "graph/analysis/lint.h"
#include "graph/ir/order.h"
#include "shoal/compile.h"

struct move {
    struct shoal_graph *graph;
    struct shoal_node *const *nodes;
    size_t n_nodes;
    shoal_insert_point where;
    uint32_t *places; /* by id: place among the moved nodes, counted from 1; 0 if it is not moved */
    struct constraints constraints;
    uint32_t border; /* other nodes with smaller numbers will be before the moved ones */
};

static shoal_status check_node(const struct move *move, const struct shoal_node *node)
{
    if (node->is_erased) {
        return error_set(SHOAL_ERR_INVALID, "node %.64s was erased", node->name);
    }
    return node->graph == move->graph
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "node %.64s belongs to another graph", node->name);
}

static shoal_status check_nodes(const struct move *move)
{
    for (size_t i = 0; i < move->n_nodes; i++) {
        const struct shoal_node *node = move->nodes[i];
        if (!node) {
            return error_set(SHOAL_ERR_INVALID, "node %zu is NULL", i);
        }
        TRY(check_node(move, node));
        if (node->kind == SHOAL_NODE_PLACEHOLDER || node->kind == SHOAL_NODE_OUTPUT) {
            return error_set(SHOAL_ERR_INVALID, "node %.64s is %s, which cannot be moved", node->name,
                             node->kind == SHOAL_NODE_OUTPUT ? "the output" : "an input");
        }
        if (move->places[node->id] > 0) {
            return error_set(SHOAL_ERR_INVALID, "node %.64s is given twice", node->name);
        }
        move->places[node->id] = (uint32_t)i + 1;
    }
    const struct shoal_node *where = move->where.node;
    if (where) {
        TRY(check_node(move, where));
        if (move->places[where->id] > 0) {
            return error_set(SHOAL_ERR_INVALID, "node %.64s would move next to itself", where->name);
        }
    }
    return SHOAL_OK;
}

static shoal_status refuse(const struct shoal_node *before, const struct shoal_node *behind)
{
    return error_set(SHOAL_ERR_INVALID, "node %.64s has to stay before node %.64s", before->name,
                     behind->name);
}

/* Whether `before` will be before `behind` after the move. At least one of them is moved. */
static bool is_kept(const struct move *move, uint32_t before, uint32_t behind)
{
    uint32_t before_place = move->places[move->constraints.nodes[before]->id];
    uint32_t behind_place = move->places[move->constraints.nodes[behind]->id];
    if (before_place > 0 && behind_place > 0) {
        return before_place < behind_place;
    }
    return before_place > 0 ? behind >= move->border : before < move->border;
}

static shoal_status check_constraints(const struct move *move)
{
    const struct constraints *constraints = &move->constraints;
    for (size_t i = 0; i < move->n_nodes; i++) {
        uint32_t number = constraints->number[move->nodes[i]->id];
        for (uint32_t k = constraints->first_before[number]; k < constraints->first_before[number + 1]; k++) {
            if (!is_kept(move, constraints->before[k], number)) {
                return refuse(constraints->nodes[constraints->before[k]], move->nodes[i]);
            }
        }
        for (uint32_t k = constraints->first_behind[number]; k < constraints->first_behind[number + 1]; k++) {
            if (!is_kept(move, number, constraints->behind[k])) {
                return refuse(move->nodes[i], constraints->nodes[constraints->behind[k]]);
            }
        }
    }
    return SHOAL_OK;
}

static shoal_status check(struct move *move)
{
    struct effects *effects;
    TRY(check_nodes(move));
    TRY(graph_lint_order(move->graph));
    TRY(effects_build(move->graph, &effects));
    shoal_status status = constraints_build(move->graph, effects, CONSTRAINTS_ALL_STARTS, &move->constraints);
    effects_free(effects);
    TRY(status);
    move->border = move->where.is_after ? move->constraints.n_nodes : 0;
    if (move->where.node) {
        move->border = move->constraints.number[move->where.node->id] + (move->where.is_after ? 1 : 0);
    }
    const struct shoal_node *output = move->graph->output;
    if (output && move->border > move->constraints.number[output->id]) {
        return refuse(move->nodes[0], output);
    }
    return check_constraints(move);
}

static void apply(const struct move *move)
{
    struct shoal_graph *graph = move->graph;
    for (size_t i = 0; i < move->n_nodes; i++) {
        order_remove(move->nodes[i]);
    }
    struct shoal_node *prev = move->where.is_after ? graph->last : NULL;
    if (move->where.node) {
        prev = move->where.is_after ? move->where.node : move->where.node->prev;
    }
    for (size_t i = 0; i < move->n_nodes; i++) {
        order_insert_after(graph, move->nodes[i], prev);
        prev = move->nodes[i];
    }
}

shoal_status shoal_graph_move_nodes(shoal_graph *graph, shoal_node *const *nodes, size_t n_nodes,
                                    shoal_insert_point where)
{
    struct move move = {.graph = graph, .nodes = nodes, .n_nodes = n_nodes, .where = where};
    error_clear();
    if (!graph || (n_nodes > 0 && !nodes)) {
        return error_set(SHOAL_ERR_INVALID, "graph_move_nodes: %s is NULL", graph ? "nodes" : "graph");
    }
    if (n_nodes == 0) {
        return SHOAL_OK;
    }
    move.places = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof move.places[0]);
    shoal_status status = move.places ? check(&move) : SHOAL_ERR_NO_MEMORY;
    if (status == SHOAL_OK) {
        apply(&move);
    }
    constraints_free(&move.constraints);
    mem_free(move.places);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "graph_move_nodes");
}
