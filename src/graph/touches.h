/* SPDX-License-Identifier: MIT */
/* What a node does with the tensors that its arguments name. The one place that knows it of each op. */
#ifndef GRAPH_TOUCHES_H
#define GRAPH_TOUCHES_H

#include <stdbool.h>

#include "graph/graph.h"

/* A tensor that is read or written, or both. */
struct touch {
    const struct shoal_node *node; /* the argument */
    size_t value;                  /* which of its values, */
    const shoal_tensor *tensor;    /* and that itself */
    bool reads;
    bool writes;
};

/* Anything but SHOAL_OK ends the visit. */
typedef shoal_status (*touches_function)(void *context, const struct touch *touch);

/*
 * Calls `visit` for every tensor of every argument, in order, and repeatedly where it is named repeatedly. Of a start
 * it is what the communication does until its wait. The caller knows whether the node is a view, which touches nothing,
 * or a wait.
 */
shoal_status touches_visit(const struct shoal_node *node, touches_function visit, void *context);

#endif
