/* SPDX-License-Identifier: MIT */
/* Which tensors the placeholders of a captured step stand for. The text of a graph does not tell, so SHOAL_COMPILE_CHECK
   compares them by these lists. */
#ifndef GRAPH_COMPILE_BOUND_H
#define GRAPH_COMPILE_BOUND_H

#include "graph/ir/captured.h"

/* All zero is none. */
struct compile_bound {
    /* One reference each; NULL for an input of the step, and for a gradient, which may move. */
    shoal_tensor **tensors;
    size_t count;
};

/* Lists the tensors of a graph that was just captured. */
shoal_status compile_bound_take(const struct captured *captured, struct compile_bound *bound);
void compile_bound_free(struct compile_bound *bound);

/* SHOAL_ERR_STATE if a placeholder stands for another tensor now. The texts of the two graphs are equal. */
shoal_status compile_bound_compare(const struct compile_bound *was, const struct compile_bound *now);

#endif
