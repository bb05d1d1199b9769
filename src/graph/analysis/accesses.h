/* SPDX-License-Identifier: MIT */
/*
 * Effects (graph/analysis/effects.h) by storage: which nodes touch it, in program order. For passes that move nodes and ask
 * what comes next in some memory. The node that makes a storage counts as writing it.
 *
 * The lists describe the graph at the moment they were built. Nodes that are made later are in no list, and
 * positions do not change.
 *
 * Most graphs write no memory twice: no op works in place, and the result of a collective is read only after its one
 * wait. In such a graph memory demands no order beyond that of inputs, and nothing is listed: `effects` is NULL, and
 * no storage has an access.
 */
#ifndef GRAPH_ANALYSIS_ACCESSES_H
#define GRAPH_ANALYSIS_ACCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/analysis/effects.h"
#include "graph/ir/graph.h"
#include "op/op.h"

#define ACCESSES_NONE UINT32_MAX

struct access {
    struct shoal_node *node;
    uint32_t position;
    uint32_t next_write; /* the next entry of the storage that writes; ACCESSES_NONE if there is none */
    bool is_write;
};

struct accesses {
    struct effects *effects; /* NULL if memory demands no order */
    uint32_t *positions;     /* by id: place in the list, counted from 1 */
    uint32_t n_ids;
    struct access *entries; /* of all storages, one storage after the other, each in program order */
    uint32_t *first;        /* by storage: its first entry; one more at the end */
};

/* Ops with one of these flags may demand an order; all others are plain. */
#define ACCESSES_FLAGS (SHOAL_OP_IN_PLACE | SHOAL_OP_SIDE_EFFECT | SHOAL_OP_WAIT | SHOAL_OP_COLLECTIVE)

/* Whether the node is plain: if all nodes of a graph are, memory demands no order in it. */
bool accesses_is_plain(const struct shoal_node *node);

shoal_status accesses_find(const struct shoal_graph *graph, struct accesses *accesses_out);
/* Frees the lists. A struct that is all zero may be freed. */
void accesses_free(struct accesses *accesses);

/* Returns the first entry of the storage after a position; first[storage + 1]: none. */
uint32_t accesses_behind(const struct accesses *accesses, uint32_t storage, uint32_t position);

/* Returns the position of a node; 0 if the node was made after the lists. */
static inline uint32_t accesses_position(const struct accesses *accesses, const struct shoal_node *node)
{
    return node->id < accesses->n_ids ? accesses->positions[node->id] : 0;
}

static inline bool accesses_is_write(const struct effects_access *access)
{
    return access->writes || access->creates;
}

static inline bool node_calls(const struct shoal_node *node, enum op_id id)
{
    return node->op && node->op->index == (int)id;
}

#endif
