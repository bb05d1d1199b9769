/* SPDX-License-Identifier: MIT */
/* Finds the constants of a graph that share a storage. */
#ifndef GRAPH_TEXT_SHARING_H
#define GRAPH_TEXT_SHARING_H

#include <stddef.h>

#include "base/map.h"
#include "shoal/graph.h"

/* The constants of a storage. */
struct sharers {
    const shoal_node *first; /* in the order of the graph */
    size_t count;
};

/* All zero is an empty one. */
struct sharing {
    struct map storages; /* to indices of `sharers` */
    struct sharers *sharers;
    size_t n_sharers;
    size_t capacity;
};

/* Fills in an empty struct. Call sharing_free also after a failure. */
shoal_status sharing_find(struct sharing *sharing, const shoal_graph *graph);
/* Returns the constants that share the storage of a constant of that graph. */
struct sharers sharing_of(const struct sharing *sharing, const shoal_node *node);
void sharing_free(struct sharing *sharing);

#endif
