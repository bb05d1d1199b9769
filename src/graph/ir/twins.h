/* SPDX-License-Identifier: MIT */
/*
 * Twins: the storages of constants on the meta device. A constant has a tensor with data, but values of calls are
 * inferred on the meta device. There, a twin on the meta device is used in place of the constant's storage. Each
 * storage has one twin, so all views of it share a storage there, too.
 */
#ifndef GRAPH_IR_TWINS_H
#define GRAPH_IR_TWINS_H

#include "graph/ir/graph.h"
#include "tensor/tensor.h"

/* Gives `tensor` itself if it is on the meta device; otherwise a tensor like it over the twin of its storage, which the
   innermost scope owns. */
shoal_status twins_tensor(struct shoal_graph *graph, shoal_tensor *tensor, shoal_tensor **twin_out);

/* Returns the twin of a storage; if it has none, the storage itself. */
const struct storage *twins_find(const struct shoal_graph *graph, const struct storage *storage);

#endif
