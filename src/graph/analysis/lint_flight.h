/* SPDX-License-Identifier: MIT */
/* The part of shoal_graph_lint that checks memory in flight. */
#ifndef GRAPH_ANALYSIS_LINT_FLIGHT_H
#define GRAPH_ANALYSIS_LINT_FLIGHT_H

#include "graph/ir/graph.h"

/* SHOAL_ERR_STATE: a node touches memory that communication in flight uses. Call it when all other checks have
   passed. */
shoal_status lint_flight(const struct shoal_graph *graph);

#endif
