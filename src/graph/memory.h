/* SPDX-License-Identifier: MIT */
/*
 * How much memory a graph needs at each of its nodes, and at most, in bytes.
 *
 * A storage is there from the node that gives it first to the last node that uses it, both included: views and what
 * writes in place use one, and give none. A collective that was started uses its storages until it has been waited for:
 * a wait uses what its start reads. What inputs and constants give is there from the beginning; constants, and inputs
 * whose names begin with "primals", to the end.
 *
 * A profile follows nodes that are moved, in log n for each storage that such a node uses.
 */
#ifndef GRAPH_MEMORY_H
#define GRAPH_MEMORY_H

#include <stdint.h>

#include "graph/effects.h"
#include "graph/graph.h"

struct memory_profile;

/* n log n. The effects are those of the graph as it stands. */
shoal_status memory_profile_build(const struct shoal_graph *graph, const struct effects *effects,
                                  struct memory_profile **profile_out);
void memory_profile_free(struct memory_profile *profile); /* NULL is allowed */

/* The most at any node. */
uint64_t memory_profile_peak(const struct memory_profile *profile);

/* While the node runs. */
uint64_t memory_profile_at(const struct memory_profile *profile, const struct shoal_node *node);

/* The first node, or the last one, at which more is there than `limit`; NULL: none. */
struct shoal_node *memory_profile_find_above(struct memory_profile *profile, uint64_t limit, bool is_first);

/* Moves a node of the graph, and what is known of it, directly before `where`. Cannot fail. */
void memory_profile_move(struct memory_profile *profile, struct shoal_node *node, struct shoal_node *where);

/* memory_profile_peak of a graph. */
shoal_status memory_peak(const struct shoal_graph *graph, uint64_t *bytes_out);

#endif
