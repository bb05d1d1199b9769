/* SPDX-License-Identifier: MIT */
/*
 * The gradient functions that rows OP of ops.def name. A row whose function is missing does not link. Those of rows
 * OP_OF_RANKS are in src/collective.
 *
 * They call ops and nothing else, and need no check after each call: once an op failed, its scope makes every
 * later one return NULL, and the engine asks the scope at the end.
 */
#ifndef AUTOGRAD_GRADIENTS_H
#define AUTOGRAD_GRADIENTS_H

#include "op/dispatch.h"
#include "op/op.h"

/* One signature for all; hardly any function needs every parameter. */
#define GRADIENT(name)                                                                          \
    shoal_status gradient_##name(__attribute__((unused)) shoal_op_call_context *call,           \
                                 __attribute__((unused)) const shoal_value *arguments,          \
                                 __attribute__((unused)) shoal_tensor *const *outputs,          \
                                 __attribute__((unused)) shoal_tensor *const *output_gradients, \
                                 __attribute__((unused)) shoal_tensor **input_gradients)

#define OP(name, signature, flags, meta, kernel, gradient, saves, doc) GRADIENT(gradient);
#define OP_OF_RANKS(...)
#include "op/ops.def"
#undef OP

/* Returns the function of a built-in or registered op; NULL if the op is not differentiable. */
shoal_op_gradient gradients_find(const shoal_op *op);

/* For gradient functions ------------------------------------------------------------------------------- */

/* Sums `gradient` over the dimensions along which a tensor of the shape of `like` was broadcast. */
shoal_tensor *gradients_sum_to(shoal_tensor *gradient, const shoal_tensor *like);

/* Zeros with shape and dtype of `like`, on the device of `gradient`: `like` may be a shape on the meta device. */
shoal_tensor *gradients_zeros(const shoal_tensor *like, shoal_tensor *gradient);

/* A "scalar" argument. */
double gradients_scalar(const shoal_value *value);

#endif
