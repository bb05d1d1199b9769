/* SPDX-License-Identifier: MIT */
/* The part of shoal_graph_lint that watches memory in flight. */
#ifndef GRAPH_LINT_FLIGHT_H
#define GRAPH_LINT_FLIGHT_H

#include "graph/graph.h"

/* SHOAL_ERR_STATE when a node touches memory that communication uses meanwhile. Everything else that lint checks
   holds. */
shoal_status lint_flight(const struct shoal_graph *graph);

#endif
