/* SPDX-License-Identifier: MIT */
/* What a node does with the tensors among its arguments. Only this file knows that for each op. */
#ifndef GRAPH_ANALYSIS_TOUCHES_H
#define GRAPH_ANALYSIS_TOUCHES_H

#include <stdbool.h>

#include "graph/ir/graph.h"

/* A tensor that is read or written, or both. */
struct touch {
    const struct shoal_node *node; /* the argument */
    size_t value;                  /* the index of its value */
    const shoal_tensor *tensor;    /* that value */
    bool reads;
    bool writes;
};

/* Anything but SHOAL_OK ends the visit. */
typedef shoal_status (*touches_function)(void *context, const struct touch *touch);

/*
 * Calls `visit` for every tensor of every argument, in order; for a tensor that is named twice, twice. For a start, it
 * tells what the communication does until its wait. The caller must treat views, which touch nothing, and waits itself.
 */
shoal_status touches_visit(const struct shoal_node *node, touches_function visit, void *context);

#endif
