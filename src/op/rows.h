/* SPDX-License-Identifier: MIT */
/*
 * A row of ops.def as a struct, and the declarations of the functions that rows OP name. A row whose functions are
 * missing does not link. Those of rows OP_OF_RANKS are declared in collective/rows.h.
 */
#ifndef OP_ROWS_H
#define OP_ROWS_H

#include "op/dispatch.h"
#include "op/op.h"

/* The op that is made of a row is about twelve times as large. It is made at run time, so the library stays small. */
struct op_row {
    const char *name;
    const char *signature;
    const char *doc;
    const char *saves;
    shoal_op_meta meta;
    shoal_op_kernel kernel;
    shoal_op_gradient gradient; /* NULL if autograd has it (autograd/gradients.h) */
    enum op_id id;
    uint32_t flags;
};

#define OP_ROW(id_, signature_, flags_, meta_, kernel_, gradient_, saves_, doc_)                            \
    {                                                                                                       \
        .id = OP_##id_, .name = #id_, .signature = signature_, .doc = doc_, .saves = saves_, .meta = meta_, \
        .kernel = kernel_, .gradient = gradient_, .flags = flags_                                           \
    }

/* Makes the ops of these rows. Call once for each row, before op_get can be called for it. What the rows point at must
   stay. */
void op_hand_in(const struct op_row *rows, size_t n_rows);

/* Declares the functions of a row. */
#define OP_DECLARE_META(meta) \
    shoal_status meta_##meta(shoal_op_call_context *call, const shoal_value *arguments);
#define OP_DECLARE_KERNEL(kernel)                                                        \
    shoal_status run_##kernel(shoal_op_call_context *call, const shoal_value *arguments, \
                              shoal_tensor *const *outputs, size_t n_outputs);

#define WORKSPACE(op, function)                                                                  \
    size_t workspace_##function(const shoal_op_call_context *call, const shoal_value *arguments, \
                                shoal_tensor *const *outputs, size_t n_outputs);
#include "op/workspaces.def"
#undef WORKSPACE

#define OP(name, signature, flags, meta, kernel, gradient, saves, doc) \
    OP_DECLARE_META(meta)                                              \
    OP_DECLARE_KERNEL(kernel)
#define OP_OF_RANKS(...)
#include "op/ops.def"
#undef OP

#endif
