/* SPDX-License-Identifier: MIT */
/* Pictures of graphs in which some nodes are marked. */
#ifndef GRAPH_TEXT_DOT_H
#define GRAPH_TEXT_DOT_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/graph.h"

/* Like shoal_graph_print_dot, but nodes with is_marked[id] are yellow. Ids from n_marks on are not marked. */
shoal_status graph_print_dot_marked(const shoal_graph *graph, const bool *is_marked, size_t n_marks,
                                    shoal_graph_write write, void *context);

#endif
