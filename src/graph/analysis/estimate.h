/* SPDX-License-Identifier: MIT */
/* Estimates how long nodes take. A rough guess, until there is a model of the machine. All passes ask here. */
#ifndef GRAPH_ANALYSIS_ESTIMATE_H
#define GRAPH_ANALYSIS_ESTIMATE_H

#include <stdint.h>

#include "graph/ir/graph.h"

/*
 * A start takes 10 us, and 1 ns for every 10 bytes that it takes or gives, whichever is more. Other calls take 2 us,
 * 1 ns for every 1000 bytes that they take and give, and, for ops with SHOAL_OP_COMPUTE, which count as matrix
 * products, 1 ns for every 100,000 operations. Views, waits and nodes that are not calls take no time.
 */
uint64_t graph_estimate_ns(const struct shoal_node *node);

#endif
