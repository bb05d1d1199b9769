/* SPDX-License-Identifier: MIT */
/* Arithmetic that rows of single tensors and of lists share. */
#ifndef OP_ARITH_H
#define OP_ARITH_H

#include "kernel/kernel.h"
#include "op/op.h"

shoal_status arith_check_same_dtype(const shoal_tensor *self, const shoal_tensor *other);

/* SHOAL_ERR_UNSUPPORTED for dtypes that are only moved and cast: 8-bit floats. */
shoal_status arith_check_dtype(const shoal_tensor *self);

/* As arith_check_dtype, and SHOAL_ERR_UNSUPPORTED where truth values have no meaning: sub, div, neg. */
shoal_status arith_check_number(const shoal_tensor *self);

/* SHOAL_ERR_INVALID, naming the argument, for a number that an integer tensor cannot hold. */
shoal_status arith_check_fits(const shoal_tensor *self, const char *name, const shoal_value *number);

/* dst = self op other, broadcast to dst. */
shoal_status arith_run(enum kernel_binary op, shoal_tensor *dst, shoal_tensor *self, shoal_tensor *other);

/* dst = self op number. */
shoal_status arith_run_with_number(enum kernel_binary op, shoal_tensor *dst, shoal_tensor *self,
                                   const shoal_value *number);

#endif
