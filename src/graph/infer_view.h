/* SPDX-License-Identifier: MIT */
/*
 * What the commonest views give, without the dispatcher: a flat or reshaped look at tensors that lie in one piece, and
 * an item of a list. Passes make thousands of them. The rules are those of the meta functions, which decide about
 * everything else (unit/graph/infer_view compares the two).
 */
#ifndef GRAPH_INFER_VIEW_H
#define GRAPH_INFER_VIEW_H

#include "graph/graph.h"

/* Arguments are complete. *tensor_out is NULL when there is no rule for this call; otherwise a reference on what it
   gives. */
shoal_status infer_view(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args,
                        shoal_tensor **tensor_out);

#endif
