/* SPDX-License-Identifier: MIT */
/* Pictures of graphs in which some nodes are marked. */
#ifndef GRAPH_TEXT_DOT_H
#define GRAPH_TEXT_DOT_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/graph.h"

/* Nodes that are yellow. All zero: none is. */
struct dot_marks {
    const bool *is_marked; /* by id */
    size_t n_marks;        /* ids from here on are not marked */
    const char *what;      /* the marked nodes, in the legend; NULL if there are none */
};

/* Like shoal_graph_print_dot, with marked nodes. */
shoal_status graph_print_dot_marked(const shoal_graph *graph, const struct dot_marks *marks,
                                    shoal_graph_write write, void *context);

#endif
