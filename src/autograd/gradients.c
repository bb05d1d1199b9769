/* SPDX-License-Identifier: MIT */
/* The table of gradient functions. */
#include "autograd/gradients.h"

shoal_op_gradient gradients_find(const shoal_op *op)
{
    static const shoal_op_gradient table[OP_COUNT] = {
#define OP(name, signature, flags, meta, kernel, gradient, saves, doc) [OP_##name] = gradient_##gradient,
#define OP_OF_RANKS(...)
#include "op/ops.def"
#undef OP
    };
    shoal_op_gradient gradient = op->gradient || !op_is_builtin(op) ? op->gradient : table[op->index];
    return gradient == gradient_none ? NULL : gradient;
}
