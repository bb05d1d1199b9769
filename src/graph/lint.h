/* SPDX-License-Identifier: MIT */
/* The part of shoal_graph_lint that a walk along the list relies on. */
#ifndef GRAPH_LINT_H
#define GRAPH_LINT_H

#include "graph/graph.h"

/* SHOAL_ERR_STATE unless the list is whole and every node stands behind its inputs. Allocates nothing. */
shoal_status graph_lint_order(const struct shoal_graph *graph);

#endif
