/* SPDX-License-Identifier: MIT */
/*
 * Computes how many bytes of memory a graph needs at each of its nodes, and at most.
 *
 * A storage is in use from the node that creates it to the last node that uses it, both included. Views and in-place
 * ops use a storage, and create none. A collective uses its storages until its wait, so a wait uses what its start
 * reads. Storages of placeholders and constants are in use from the beginning; those of constants, and of placeholders
 * whose names begin with "primals", to the end.
 *
 * A profile is updated when a node is moved, in log n time for each storage that the node uses.
 */
#ifndef GRAPH_ANALYSIS_MEMORY_H
#define GRAPH_ANALYSIS_MEMORY_H

#include <stdint.h>

#include "graph/analysis/effects.h"
#include "graph/ir/graph.h"

struct memory_profile;

/* Builds the profile of a graph, in n log n time. `effects` must be those of the graph in its present order. */
shoal_status memory_profile_build(const struct shoal_graph *graph, const struct effects *effects,
                                  struct memory_profile **profile_out);
void memory_profile_free(struct memory_profile *profile); /* NULL is allowed */

/* Returns the most memory in use at any node. */
uint64_t memory_profile_peak(const struct memory_profile *profile);

/* Returns the memory in use while the node runs. */
uint64_t memory_profile_at(const struct memory_profile *profile, const struct shoal_node *node);

/* Returns the first node, or the last one, at which more memory than `limit` is in use; NULL if there is none. */
struct shoal_node *memory_profile_find_above(struct memory_profile *profile, uint64_t limit, bool is_first);

/* Moves a node directly before `where`, in the graph and in the profile. Cannot fail. */
void memory_profile_move(struct memory_profile *profile, struct shoal_node *node, struct shoal_node *where);

/* Gives memory_profile_peak of a graph. */
shoal_status memory_peak(const struct shoal_graph *graph, uint64_t *bytes_out);

#endif
