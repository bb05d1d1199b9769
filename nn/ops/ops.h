/* SPDX-License-Identifier: MIT */
/* The operations of ops.def: their numbers, their functions, calling one, and what their functions share. */
#ifndef NN_OPS_OPS_H
#define NN_OPS_OPS_H

#include <stdbool.h>
#include <stddef.h>

#include "math/loops.h"
#include "shoal/op.h"
#include "shoal/tensor.h"

enum nn_op {
#define NN_OP(name, signature, flags, meta, kernel, gradient, saves, context, doc) NN_OP_##name,
#include "ops/ops.def"
#undef NN_OP
    NN_OP_COUNT
};

#define META(name) shoal_status meta_##name(shoal_op_call_context *call, const shoal_value *arguments)
#define RUN(name)                                                                      \
    shoal_status run_##name(shoal_op_call_context *call, const shoal_value *arguments, \
                            shoal_tensor *const *outputs, size_t n_outputs)
#define GRADIENT(name)                                                                                \
    shoal_status gradient_##name(shoal_op_call_context *call, const shoal_value *arguments,           \
                                 shoal_tensor *const *outputs, shoal_tensor *const *output_gradients, \
                                 shoal_tensor **input_gradients)

/* How much of the workspace run_<name> takes. */
#define WORKSPACE(name)                                                                      \
    size_t workspace_##name(const shoal_op_call_context *call, const shoal_value *arguments, \
                            shoal_tensor *const *outputs, size_t n_outputs)

/* A function of each element, or of each row; which loops, which gradient. */
struct nn_activation {
    size_t forward;        /* offset of its nn_forward_loop in struct nn_loops */
    size_t backward;       /* offset of its nn_backward_loop */
    enum nn_op gradient;   /* the op of the gradient */
    bool has_saved_result; /* the gradient reads the result, not the argument */
};

extern const struct nn_activation nn_tanh;
extern const struct nn_activation nn_relu;
extern const struct nn_activation nn_gelu;
extern const struct nn_activation nn_gelu_tanh;
extern const struct nn_activation nn_exp;
extern const struct nn_activation nn_log;
extern const struct nn_activation nn_sqrt;
extern const struct nn_activation nn_sigmoid;
extern const struct nn_activation nn_silu;
extern const struct nn_activation nn_softmax;
extern const struct nn_activation nn_log_softmax;

/* Registers all of them, once. */
shoal_status nn_register_ops(void);

/* Calls one of our ops, which is registered first if need be. Returns NULL if it fails, with the error in the scope. */
shoal_tensor *nn_call(enum nn_op op, const shoal_value *arguments, size_t n_arguments);

/* Calls one of our ops that has several results, of which the first n go to results. */
shoal_status nn_call_list(enum nn_op op, const shoal_value *arguments, size_t n_arguments,
                          shoal_tensor **results, size_t n);

/* Boxed arguments. */
static inline shoal_value nn_tensor(shoal_tensor *tensor)
{
    return (shoal_value){.kind = SHOAL_VALUE_TENSOR, .count = 1, .as = {.tensor = tensor}};
}

static inline shoal_value nn_optional(shoal_tensor *tensor)
{
    return tensor ? nn_tensor(tensor) : (shoal_value){.kind = SHOAL_VALUE_NONE};
}

static inline shoal_value nn_float(double number)
{
    return (shoal_value){.kind = SHOAL_VALUE_FLOAT, .count = 1, .as = {.real = number}};
}

static inline shoal_value nn_int(int64_t number)
{
    return (shoal_value){.kind = SHOAL_VALUE_INT, .count = 1, .as = {.integer = number}};
}

static inline shoal_value nn_bool(bool boolean)
{
    return (shoal_value){.kind = SHOAL_VALUE_BOOL, .count = 1, .as = {.boolean = boolean}};
}

/* NULL for an absent one. */
static inline shoal_tensor *nn_argument(const shoal_value *value)
{
    return value->kind == SHOAL_VALUE_TENSOR ? value->as.tensor : NULL;
}

/* Checks of meta functions: `name` is the parameter in the error's text -------------------------------- */

/* "[2, 3]" */
struct nn_text {
    char text[SHOAL_MAX_DIMS * 22 + 4];
};
struct nn_text nn_shape_text(const shoal_tensor *tensor);

shoal_status nn_check_floating(const shoal_tensor *tensor, const char *name);
shoal_status nn_check_integer(const shoal_tensor *tensor, const char *name);
shoal_status nn_check_dtype(const shoal_tensor *tensor, const char *name, shoal_dtype dtype,
                            const char *other_name);
shoal_status nn_check_same_shape(const shoal_tensor *tensor, const char *name, const shoal_tensor *other,
                                 const char *other_name);
/* One dimension of that size; an absent tensor is right. */
shoal_status nn_check_vector(const shoal_tensor *tensor, const char *name, int64_t size,
                             const char *size_name);

/* Gives a dimension that may be negative as one from 0 up; a tensor without dimensions has the dimensions -1 and 0. */
shoal_status nn_check_dim(int64_t dim, const shoal_tensor *tensor, const char *name, int *dim_out);
/* Returns a dimension that was checked as one from 0 up. */
int nn_dim(int64_t dim, const shoal_tensor *tensor);

/* The product of all dimensions but the last; 1 for one dimension. */
int64_t nn_count_rows(const shoal_tensor *tensor);
/* The last dimension, which must be there. */
int64_t nn_last_size(const shoal_tensor *tensor);

#endif
