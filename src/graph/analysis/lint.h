/* SPDX-License-Identifier: MIT */
/* The part of shoal_graph_lint on which walks along the list rely. */
#ifndef GRAPH_ANALYSIS_LINT_H
#define GRAPH_ANALYSIS_LINT_H

#include "graph/ir/graph.h"

/* Checks that the list is intact and that every node comes after its inputs; otherwise SHOAL_ERR_STATE. Allocates
   nothing. */
shoal_status graph_lint_order(const struct shoal_graph *graph);

#endif
