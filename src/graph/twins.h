/* SPDX-License-Identifier: MIT */
/*
 * The storages of constants, on the meta device. A constant has a tensor with data, but what calls give is worked out
 * on the meta device. There a constant is looked at through a twin of its storage: one for each, however many constants
 * and calls look at it, so that views of a constant share a storage with each other.
 */
#ifndef GRAPH_TWINS_H
#define GRAPH_TWINS_H

#include "graph/graph.h"
#include "tensor/tensor.h"

/* A tensor of the meta device like `tensor`: itself, or one of the innermost scope over the twin of its storage. */
shoal_status twins_tensor(struct shoal_graph *graph, shoal_tensor *tensor, shoal_tensor **twin_out);

/* The storage that stands for this one in what calls give: its twin if it has one, otherwise itself. */
const struct storage *twins_find(const struct shoal_graph *graph, const struct storage *storage);

#endif
