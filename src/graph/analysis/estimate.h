/* SPDX-License-Identifier: MIT */
/*
 * Estimates how long nodes and graphs take on a machine (machine.h). All passes that weigh time ask here.
 *
 * A call takes call_ns, its bytes (all that it takes and gives) at touched_bytes_per_ns, and what costs.def says of its
 * op. A collective takes latency_ns and its bytes at bytes_per_ns. Views, waits, and nodes that are not calls take no
 * time.
 *
 * What estimates may decide: ranks must make the same collectives, but may have inputs of different sizes. So what joins
 * or splits collectives asks only for the times of collectives, which follow from what ranks have in common; the time
 * of compute decides only where a rank starts a collective and waits for it.
 */
#ifndef GRAPH_ANALYSIS_ESTIMATE_H
#define GRAPH_ANALYSIS_ESTIMATE_H

#include <stdint.h>

#include "graph/analysis/machine.h"
#include "graph/ir/graph.h"

/* Returns how long a node takes: a start of communication, until what it starts has ended. */
uint64_t estimate_node_ns(const struct machine *machine, const struct shoal_node *node);

/* Returns how long an all_reduce over so many ranks takes for each byte, beside its latency. */
double estimate_byte_ns(const struct machine *machine, size_t n_ranks);

struct estimate {
    uint64_t compute_ns;       /* of all nodes that are no communication */
    uint64_t communication_ns; /* of all collectives, each alone */
    uint64_t exposed_ns;       /* by how much communication makes the step longer than its compute */
    uint64_t peak_bytes;       /* memory.h */
};

/*
 * Estimates a graph as it stands: nodes run in order, and collectives of a group one after the other beside them. A start
 * costs the rank start_ns. While the rank computes, what is in flight goes on, but only the share `hidden` of its time is
 * free; a wait takes as long as what it waits for.
 */
shoal_status estimate_graph(const struct machine *machine, const struct shoal_graph *graph,
                            struct estimate *estimate_out);

#endif
