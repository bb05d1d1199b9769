/* SPDX-License-Identifier: MIT */
/* The rows OP_OF_RANKS of ops.def: the functions that they name, and handing them to the table of built-in ops. */
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

/* After this op_get knows the ops of these rows. Whoever gives out one of them, or calls one for a user, calls this first;
   it is cheap from the second time on. */
void collective_hand_in(void);

#endif
