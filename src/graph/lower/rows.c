/* SPDX-License-Identifier: MIT */
/* The rows of lowerings.def, by op. */
#include "graph/lower/lower.h"
#include "op/op.h"

lowering_function lower_find_row(const shoal_op *op)
{
    static const lowering_function rows[OP_COUNT] = {
#define LOWERING(op, function, doc) [OP_##op] = (function),
#include "graph/lower/lowerings.def"
#undef LOWERING
    };
    return op_is_builtin(op) && rows[op->index] ? rows[op->index] : lower_point_to_point;
}
