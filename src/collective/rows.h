/* SPDX-License-Identifier: MIT */
/* The functions that the rows OP_OF_RANKS of ops.def name, and how these rows get into the table of built-in ops. */
#ifndef COLLECTIVE_ROWS_H
#define COLLECTIVE_ROWS_H

#include "autograd/gradients.h"
#include "op/rows.h"

#define OP(...)
#define OP_OF_RANKS(name, signature, flags, meta, kernel, gradient, saves, doc) \
    OP_DECLARE_META(meta)                                                       \
    OP_DECLARE_KERNEL(kernel)                                                   \
    GRADIENT(gradient);
#include "op/ops.def"
#undef OP

/* Makes op_get know the ops of these rows. Call it before one of them is returned or called. It is cheap from the
   second time on. */
void collective_hand_in(void);

#endif
