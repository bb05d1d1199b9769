/* SPDX-License-Identifier: MIT */
/*
 * Infers the most common views without the dispatcher: flatten, reshape and view of contiguous tensors, and getitem.
 * Passes make thousands of them. The rules are those of the meta functions (unit/graph/ir/infer_view compares the two),
 * which are used in all other cases.
 */
#ifndef GRAPH_IR_INFER_VIEW_H
#define GRAPH_IR_INFER_VIEW_H

#include "graph/ir/graph.h"

/* Arguments must be complete. *tensor_out is the value of the call, one reference; NULL if there is no rule for the
   op. */
shoal_status infer_view(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args,
                        shoal_tensor **tensor_out);

#endif
