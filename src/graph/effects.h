/* SPDX-License-Identifier: MIT */
/*
 * What nodes do to memory, and which order that demands of them beyond "a node comes after its inputs". The one answer
 * for all passes.
 *
 * The order of the list is taken to be right, and the edges keep what matters of it:
 *   - a write of a storage stays behind the reads and writes before it, and in front of those after it. A storage
 *     counts as one whole: where in it a view lies may depend on the rank.
 *   - a collective that was started touches its storages until it has been waited for (graph/flight.h says which wait
 *     that is): its wait stands for the end of that.
 *   - starts of one group stay in order, which all ranks must have in common; so do ops with other side effects.
 * An edge may say what others say together.
 */
#ifndef GRAPH_EFFECTS_H
#define GRAPH_EFFECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/graph.h"

struct effects;

/* What a node does to a storage. Storages are numbered in the order in which the list comes to them. */
struct effects_access {
    uint32_t storage;
    bool reads;
    bool writes;
    bool creates; /* it was not there before: a value that is no view */
};

/* Holds until the graph changes; n log n. */
shoal_status effects_build(const struct shoal_graph *graph, struct effects **effects_out);
void effects_free(struct effects *effects); /* NULL is allowed */

/* The nodes, each once and none of them its input, that this one must stay behind. Nothing for a node that is newer
   than the effects. The array is the effects'. */
void effects_before(const struct effects *effects, const struct shoal_node *node,
                    struct shoal_node *const **nodes_out, size_t *count_out);

/* Each storage once. Views, and what gives an argument itself, do nothing to it. Of NULL there are none. */
void effects_accesses(const struct effects *effects, const struct shoal_node *node,
                      const struct effects_access **accesses_out, size_t *count_out);

/* The number of storages; 0 of NULL. */
size_t effects_n_storages(const struct effects *effects);

/*
 * Whether the node may be removed when nobody uses it. Inputs and the output may not, nor an op that writes in
 * place, waits, or has another side effect (as point to point has). A collective that only gives new tensors may.
 */
bool effects_is_pure(const struct shoal_node *node);

#endif
