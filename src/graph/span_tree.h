/* SPDX-License-Identifier: MIT */
/*
 * Spans of bytes of one storage that are in use, and who uses what in another span, in log n. All spans that are ever
 * put in are known in advance, as the points where they begin and end. Uses that write have an owner, and two owners
 * never have bytes in common; uses that read are counted.
 */
#ifndef GRAPH_SPAN_TREE_H
#define GRAPH_SPAN_TREE_H

#include <stdint.h>

#include "tensor/storage.h"

#define SPAN_TREE_NONE UINT32_MAX

enum span_use {
    SPAN_READ,
    SPAN_WRITE
};

/* A range of neighbouring pieces, which lie between points. */
struct span_node {
    uint32_t owner;     /* of the write that covers the range and nothing above it */
    uint32_t covers[2]; /* uses that do, by enum span_use */
    uint32_t total[2];  /* those, and those of ranges inside */
};

struct span_tree {
    uint64_t *points; /* sorted, each once; at least 2 */
    uint32_t n_points;
    struct span_node *nodes; /* all zero at first */
};

static inline uint32_t span_tree_n_nodes(uint32_t n_points)
{
    return 2 * n_points - 3;
}

/* Spans are not empty, and begin and end at points. An owner that has written a part already keeps it as it is. */
void span_tree_open(struct span_tree *tree, struct span span, enum span_use use, uint32_t owner);
void span_tree_close(struct span_tree *tree, struct span span, enum span_use use, uint32_t owner);

/* The owner of a write in that span, which is any; for reads: 0 when there is one. SPAN_TREE_NONE: there is none. */
uint32_t span_tree_find(const struct span_tree *tree, struct span span, enum span_use use);

#endif
