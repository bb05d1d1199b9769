/* SPDX-License-Identifier: MIT */
/*
 * Effects: what nodes do to memory, and which order of nodes that demands, beyond "a node comes after its inputs". All
 * passes ask here.
 *
 * The order of the list is taken to be correct, and the edges keep what matters of it:
 *   - a write of a storage stays behind the reads and writes before it, and before those after it. A storage counts as
 *     a whole, because where a view lies in it may depend on the rank.
 *   - a collective uses its storages from its start to its wait (graph/analysis/flight.h finds the wait). The wait counts as a
 *     write of what it waits for, and as a read of what the start reads.
 *   - starts of one group stay in order, because all ranks must have the same order; so do ops with other side effects.
 * Some edges may follow from others.
 */
#ifndef GRAPH_ANALYSIS_EFFECTS_H
#define GRAPH_ANALYSIS_EFFECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/ir/graph.h"

struct effects;

/* What a node does to a storage. Storages are numbered in the order in which they first appear in the list. */
struct effects_access {
    uint32_t storage;
    bool reads;
    bool writes;
    bool creates; /* the storage is new: a value of the node that is no view */
};

/* Finds the effects of a graph, in n log n time. They are valid until the graph changes. */
shoal_status effects_build(const struct shoal_graph *graph, struct effects **effects_out);
void effects_free(struct effects *effects); /* NULL is allowed */

/* Gives the nodes that `node` must stay behind, each once, without its inputs. None for a node that was made after the
   effects, or if `effects` is NULL. The array belongs to the effects. */
void effects_before(const struct effects *effects, const struct shoal_node *node,
                    struct shoal_node *const **nodes_out, size_t *count_out);
/* Like effects_before, without the node that is there only because both are starts of one group. */
void effects_before_strict(const struct effects *effects, const struct shoal_node *node,
                           struct shoal_node *const **nodes_out, size_t *count_out);

/* Gives the accesses of a node, one for each storage. Views, and ops that give an argument itself, have none. If
   `effects` is NULL, there are none. */
void effects_accesses(const struct effects *effects, const struct shoal_node *node,
                      const struct effects_access **accesses_out, size_t *count_out);

/* Returns the number of storages; 0 if `effects` is NULL. */
size_t effects_n_storages(const struct effects *effects);

/*
 * Whether the node may be removed if it has no users. Not so are placeholders, the output, and ops that write in place,
 * wait, or have other side effects (point-to-point ops, for example). A collective that only gives new tensors may be
 * removed.
 */
bool effects_is_pure(const struct shoal_node *node);

#endif
