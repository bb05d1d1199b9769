/* SPDX-License-Identifier: MIT */
/*
 * What an operation is. Built-in ones are rows of ops.def, registered ones are made from a
 * shoal_op_definition; both are this struct, and nothing tells them apart afterwards.
 */
#ifndef OP_OP_H
#define OP_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/op.h"
#include "tensor/tensor.h"

/* More parameters than this are an error at registration. */
#define OP_MAX_PARAMS 12

/* Parameter types, in the words of a signature. Rows: PARAM(NAME, word, value kind). */
#define OP_PARAM_TYPES(PARAM)                             \
    PARAM(TENSOR, "tensor", SHOAL_VALUE_TENSOR)           \
    PARAM(OPTIONAL_TENSOR, "tensor?", SHOAL_VALUE_TENSOR) \
    PARAM(TENSORS, "tensors", SHOAL_VALUE_TENSORS)        \
    PARAM(INT, "int", SHOAL_VALUE_INT)                    \
    PARAM(INTS, "ints", SHOAL_VALUE_INTS)                 \
    PARAM(FLOAT, "float", SHOAL_VALUE_FLOAT)              \
    PARAM(SCALAR, "scalar", SHOAL_VALUE_FLOAT)            \
    PARAM(BOOL, "bool", SHOAL_VALUE_BOOL)                 \
    PARAM(DTYPE, "dtype", SHOAL_VALUE_DTYPE)              \
    PARAM(STRING, "string", SHOAL_VALUE_STRING)           \
    PARAM(GROUP, "group", SHOAL_VALUE_GROUP)

enum op_param_type {
#define PARAM(NAME, word, kind) OP_PARAM_##NAME,
    OP_PARAM_TYPES(PARAM)
#undef PARAM
};

#define OP_SAVED_FOR_ANY (-1)

/* Whether the gradient function reads the data of a tensor. */
struct op_saving {
    bool is_saved;
    int saved_for;       /* for the gradient of that parameter only; OP_SAVED_FOR_ANY: for all */
    char saved_when[16]; /* when the op's string argument is one of these words, "x|y"; "" means always */
};

struct op_param {
    char name[24];
    enum op_param_type type;
    bool has_default;
    struct op_saving saving;
    shoal_value default_value;
    char default_text[16]; /* what default_value.as.string points at */
};

struct shoal_op {
    const char *name;
    const char *signature;
    const char *doc;
    uint32_t flags;
    int index; /* in the registry; below OP_COUNT for built-in ones */
    size_t n_params;
    struct op_param params[OP_MAX_PARAMS];
    bool returns_list;
    struct op_saving result_saving; /* of the outputs */
    shoal_op_meta meta;
    shoal_op_kernel kernel;
    shoal_op_gradient gradient; /* NULL for rows OP of ops.def: theirs are in autograd */
    void *context;
    shoal_op_workspace_bytes workspace; /* NULL if its kernel takes none */
    /* Of a registered op: its kernels for devices other than the CPU. Only added to. */
    _Atomic(struct op_device_kernel *) device_kernels;
};

struct op_device_kernel {
    shoal_device device;
    shoal_op_kernel kernel;
    struct op_device_kernel *next;
};

/* Numbers of the built-in ops: OP_add, OP_narrow, ... */
enum op_id {
#define OP(name, signature, flags, meta, kernel, gradient, saves, doc) OP_##name,
#include "op/ops.def"
#undef OP
    OP_COUNT
};

/* A built-in op. Those of rows OP_OF_RANKS are there once their layer has handed them in (collective/rows.h). */
const shoal_op *op_get(enum op_id id);

static inline bool op_is_builtin(const shoal_op *op)
{
    return op->index < OP_COUNT;
}

static inline bool op_is_in_place(const shoal_op *op)
{
    return (op->flags & SHOAL_OP_IN_PLACE) != 0;
}

/* The kernel returns while its work is in flight; it has put fences on the storages. */
static inline bool op_is_asynchronous(const shoal_op *op)
{
    return op_is_builtin(op) && (op->flags & SHOAL_OP_COLLECTIVE) != 0;
}

/* Ops that write other arguments than the first, or arguments that depend on others. Their kernels wait for arguments
   themselves, because memory that is overwritten need not be readable. */
static inline bool op_waits_itself(const shoal_op *op)
{
    return op->index == OP_batch_p2p_ops || op->index == OP_one_shot_all_reduce_copy ||
           op->index == OP_one_shot_all_reduce_copy_out;
}

/* False if the tensor is saved only for certain values of the op's string argument, and this call has another. */
bool op_saves_when(const shoal_op *op, const struct op_saving *saving, const shoal_value *arguments);

/* Fills the parsed fields of `op` from its signature and a list of saved names ("self result"). */
shoal_status op_parse_signature(shoal_op *op, const char *saves);

#endif
