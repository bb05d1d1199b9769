/* SPDX-License-Identifier: MIT */
/*
 * Which order of a graph's nodes is as good as the one it has: for passes that only move nodes. Every order that keeps all
 * constraints computes the same and passes shoal_graph_lint. They are: a node comes after its inputs; what effects say
 * (graph/effects.h); what looks at a result behind its wait stays behind it; and the order of communication.
 *
 * Nodes are numbered as they stand when the constraints are made.
 */
#ifndef GRAPH_CONSTRAINTS_H
#define GRAPH_CONSTRAINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/effects.h"
#include "graph/graph.h"

enum constraints_order {
    CONSTRAINTS_ALL_STARTS, /* starts keep their order, whatever their groups; waits are free */
    CONSTRAINTS_GROUPS      /* starts of a group keep their order, and waits of a group keep theirs */
};

struct constraints {
    struct shoal_node **nodes; /* by number */
    uint32_t n_nodes;
    uint32_t *number;       /* by id */
    uint32_t *first_before; /* by number, and one more: where its part of `before` begins */
    uint32_t *before;       /* numbers of nodes that it must stay behind; perhaps one twice */
    uint32_t *first_behind;
    uint32_t *behind; /* the same the other way round */
};

shoal_status constraints_build(const struct shoal_graph *graph, const struct effects *effects,
                               enum constraints_order order, struct constraints *constraints_out);
/* All zero is nothing. */
void constraints_free(struct constraints *constraints);

/* A wait: nothing else that a node does counts then. */
static inline bool node_is_wait(const struct shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_WAIT) != 0;
}

/* Starts communication. */
static inline bool node_is_start(const struct shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_COLLECTIVE) != 0 && !node_is_wait(node);
}

/* A start, or something of unknown kind that other ranks may see, as a barrier: a side effect. */
static inline bool node_is_communication(const struct shoal_node *node)
{
    return (node_flags(node) & (SHOAL_OP_COLLECTIVE | SHOAL_OP_SIDE_EFFECT)) != 0 && !node_is_wait(node);
}

#endif
