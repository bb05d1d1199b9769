/* SPDX-License-Identifier: MIT */
/* Pictures of a graph before and after a pass, for those who read what a compiler does. */
#ifndef GRAPH_PASS_DOT_H
#define GRAPH_PASS_DOT_H

#include "graph/graph.h"

/* All zero: nothing is drawn. */
struct pass_dot {
    const char *prefix; /* of the files */
    const char *label;
    unsigned number;
    char *input; /* the graph as it was, but for the last brace */
    size_t n_bytes;
    size_t capacity;
    bool *is_erased; /* by id of nodes that were there */
    uint32_t n_ids;
};

/* Keeps the picture of the graph as it is now. Nothing if prefix is NULL. */
shoal_status pass_dot_begin(struct pass_dot *dot, const struct shoal_graph *graph, const char *prefix,
                            const char *label);
/* For nodes that are being erased. */
void pass_dot_erased(struct pass_dot *dot, const struct shoal_node *node);
/* Writes both pictures: PREFIXpass_NUMBER_LABEL_input_graph.dot, erased nodes in yellow, and _output_graph.dot, new
   ones in yellow. */
shoal_status pass_dot_write(struct pass_dot *dot, const struct shoal_graph *graph);
void pass_dot_end(struct pass_dot *dot);

#endif
