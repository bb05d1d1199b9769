/* SPDX-License-Identifier: MIT */
/* Draws a graph before and after a pass, for Graphviz. */
#ifndef GRAPH_PASSES_DOT_H
#define GRAPH_PASSES_DOT_H

#include "graph/ir/graph.h"

struct pass_picture {
    char *text;
    size_t n_bytes;
    size_t capacity;
};

/* All zero: nothing is drawn. */
struct pass_dot {
    const char *prefix; /* of the files */
    const char *label;
    unsigned number;
    struct pass_picture input; /* of the graph before the pass, without the last brace */
    bool *is_erased;           /* by id of nodes that existed before the pass */
    uint32_t n_ids;
};

/* Keeps the picture of the graph as it is now. Does nothing if prefix is NULL. */
shoal_status pass_dot_begin(struct pass_dot *dot, const struct shoal_graph *graph, const char *prefix,
                            const char *label);
/* Notes that a node is erased. */
void pass_dot_erased(struct pass_dot *dot, const struct shoal_node *node);
/* Writes both pictures: PREFIXpass_NUMBER_LABEL_input_graph.dot with erased nodes in yellow, and
   PREFIXpass_NUMBER_LABEL_output_graph.dot with new nodes in yellow. One that repeats the last of its kind is not
   written. */
shoal_status pass_dot_write(struct pass_dot *dot, struct shoal_graph *graph);
void pass_dot_end(struct pass_dot *dot);

#endif
