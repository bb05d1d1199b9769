/* SPDX-License-Identifier: MIT */
/* How long nodes take: a rough guess until there is a model of the machine. The only place where passes get times
   from. */
#ifndef GRAPH_ESTIMATE_H
#define GRAPH_ESTIMATE_H

#include <stdint.h>

#include "graph/graph.h"

/*
 * A start: 10 us, and 10 bytes of what it takes or gives, whichever is more, in a nanosecond. Other calls: 2 us, 1000
 * bytes of what they take and give in a nanosecond, and for ops with SHOAL_OP_COMPUTE, taken for matrix products,
 * 100,000 operations in one. Views, waits and what is no call take no time.
 */
uint64_t graph_estimate_ns(const struct shoal_node *node);

#endif
