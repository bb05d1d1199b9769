/* SPDX-License-Identifier: MIT */
/*
 * Keeps the spans of bytes of one storage that are in use, and finds uses that overlap another span, in log n time. All
 * spans that will ever be added must be known in advance, by the points at which they begin and end. Writes have an
 * owner, and writes of different owners do not overlap. Reads are only counted.
 */
#ifndef GRAPH_ANALYSIS_SPAN_TREE_H
#define GRAPH_ANALYSIS_SPAN_TREE_H

#include <stdint.h>

#include "tensor/storage.h"

#define SPAN_TREE_NONE UINT32_MAX

enum span_use {
    SPAN_READ,
    SPAN_WRITE
};

/* A node of a segment tree: a range of neighbouring pieces, which lie between points. */
struct span_node {
    uint32_t owner;     /* of the write that covers this range, but not that of the parent */
    uint32_t covers[2]; /* by enum span_use: uses that cover this range, but not that of the parent */
    uint32_t total[2];  /* covers[], plus total[] of both halves */
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

/* Add and remove a use. Spans must not be empty, and must begin and end at points. If a part is written already, it
   keeps its owner. */
void span_tree_open(struct span_tree *tree, struct span span, enum span_use use, uint32_t owner);
void span_tree_close(struct span_tree *tree, struct span span, enum span_use use, uint32_t owner);

/* Returns the owner of a write that overlaps the span, which may be any span; for reads, 0 if there is one.
   Returns SPAN_TREE_NONE if there is none. */
uint32_t span_tree_find(const struct span_tree *tree, struct span span, enum span_use use);

#endif
