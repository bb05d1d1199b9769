/* SPDX-License-Identifier: MIT */
/*
 * Constraints say which nodes must stay before which others, for passes that only move nodes. In any order that keeps
 * all constraints, the graph computes the same bits and passes shoal_graph_lint. The constraints are:
 *   - a node stays behind its inputs;
 *   - the order that effects ask for (graph/analysis/effects.h);
 *   - a call other than a view that uses a collective's result, and comes after its wait, stays behind the wait;
 *   - the order of communication (enum constraints_order).
 *
 * Nodes are numbered in program order, as it is when the constraints are built.
 */
#ifndef GRAPH_ANALYSIS_CONSTRAINTS_H
#define GRAPH_ANALYSIS_CONSTRAINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/analysis/effects.h"
#include "graph/ir/graph.h"

enum constraints_order {
    CONSTRAINTS_ALL_STARTS, /* all starts keep their order, of whatever group; waits may be put into any order */
    CONSTRAINTS_GROUPS      /* starts of a group keep their order, and waits of a group keep theirs */
};

struct constraints {
    struct shoal_node **nodes; /* by number */
    uint32_t n_nodes;
    uint32_t *number;       /* by id */
    uint32_t *first_before; /* by number, and one more: where its part of `before` begins */
    uint32_t *before;       /* numbers of the nodes that it must stay behind; one may be there twice */
    uint32_t *first_behind;
    uint32_t *behind; /* numbers of the nodes that must stay behind it */
};

shoal_status constraints_build(const struct shoal_graph *graph, const struct effects *effects,
                               enum constraints_order order, struct constraints *constraints_out);
/* A struct that is all zero may be freed. */
void constraints_free(struct constraints *constraints);

/* Waits for communication. A wait counts as nothing else, whatever other flags its op has. */
static inline bool node_is_wait(const struct shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_WAIT) != 0;
}

/* Starts communication. */
static inline bool node_is_start(const struct shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_COLLECTIVE) != 0 && !node_is_wait(node);
}

/* A start, or an op with side effects, which other ranks may notice: a barrier, point to point, a registered op. */
static inline bool node_is_communication(const struct shoal_node *node)
{
    return (node_flags(node) & (SHOAL_OP_COLLECTIVE | SHOAL_OP_SIDE_EFFECT)) != 0 && !node_is_wait(node);
}

#endif
