/* SPDX-License-Identifier: MIT */
/* The functions that rows of ops.def name, so that a row without its functions does not link. */
#ifndef OP_ROWS_H
#define OP_ROWS_H

#include "op/dispatch.h"
#include "op/op.h"

#define OP(name, signature, flags, meta, kernel, gradient, saves, doc)                   \
    shoal_status meta_##meta(shoal_op_call_context *call, const shoal_value *arguments); \
    shoal_status run_##kernel(shoal_op_call_context *call, const shoal_value *arguments, \
                              shoal_tensor *const *outputs, size_t n_outputs);
#include "op/ops.def"
#undef OP

#endif
