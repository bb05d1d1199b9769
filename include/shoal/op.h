/* SPDX-License-Identifier: MIT */
/*
 * Operations as data: boxed arguments, calling by name, registering one's own. Most programs call the typed
 * functions of shoal/ops.h; bindings, tracers and libraries of kernels use this header.
 *
 * An op has a signature such as "tensor self, int dim, scalar value = 0 -> tensor". Parameter types:
 *     tensor  tensor?  tensors  int  ints  float  scalar  bool  dtype  string  group
 * ("tensor?" may be absent, "scalar" takes an int or a float). Results: "tensor" or "tensors".
 *
 * examples/02_own_op.c registers an op with a gradient.
 *
 * A kernel gets tensors as they are, views with any strides included: use shoal_tensor_strides, or call
 * shoal_contiguous first. The op's name is put in front of error texts by the dispatcher.
 *
 * Ownership: arguments are borrowed for the call; results belong to the innermost scope. A definition is
 * copied. Registered ops live as long as the process.
 * Threads: any; registering may run beside calls.
 * Errors: a kernel, meta or gradient function reports with shoal_fail and returns what that returns.
 */
#ifndef SHOAL_OP_H
#define SHOAL_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_op shoal_op;
struct shoal_group; /* shoal/group.h */

/* Boxed values ----------------------------------------------------------------------------------------- */

typedef enum shoal_value_kind {
    SHOAL_VALUE_NONE = 0, /* an absent "tensor?", or "use the default" */
    SHOAL_VALUE_TENSOR = 1,
    SHOAL_VALUE_TENSORS = 2,
    SHOAL_VALUE_INT = 3,
    SHOAL_VALUE_INTS = 4,
    SHOAL_VALUE_FLOAT = 5,
    SHOAL_VALUE_BOOL = 6,
    SHOAL_VALUE_DTYPE = 7,
    SHOAL_VALUE_STRING = 8,
    SHOAL_VALUE_GROUP = 9
} shoal_value_kind;

typedef struct shoal_value {
    shoal_value_kind kind;
    size_t count; /* elements of tensors and ints */
    union {
        shoal_tensor *tensor;
        shoal_tensor *const *tensors;
        int64_t integer;
        const int64_t *integers;
        double real;
        bool boolean;
        shoal_dtype dtype;
        const char *string;
        struct shoal_group *group;
    } as;
} shoal_value;

/* Calling ---------------------------------------------------------------------------------------------- */

/* Found by name ("narrow", "add_"); SHOAL_ERR_INVALID, naming the nearest op, when there is none. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_find(const char *name, const shoal_op **op_out);

/*
 * Calls an op in the innermost scope. Fewer arguments than parameters are filled with defaults. The result
 * is a tensor or a list of them whose array belongs to the scope.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_call(const shoal_op *op, const shoal_value *arguments,
                                                      size_t n_arguments, shoal_value *result_out);

/* "narrow"; "" for NULL. */
SHOAL_API const char *shoal_op_name(const shoal_op *op);

typedef struct shoal_op_info {
    size_t struct_size; /* sizeof(shoal_op_info), set by the caller */
    const char *name;
    const char *signature;
    const char *doc; /* one sentence */
    uint32_t flags;  /* SHOAL_OP_VIEW and so on, below */
} shoal_op_info;
#define SHOAL_OP_INFO_INIT SHOAL_SIZED(shoal_op_info)

/* What is known of an op. The strings live as long as the op. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_describe(const shoal_op *op, shoal_op_info *info_out);

/* The op of that index, counted from 0, in order of registration; NULL past the last. */
SHOAL_API const shoal_op *shoal_op_at(size_t index);

/* Registering ------------------------------------------------------------------------------------------ */

enum {
    SHOAL_OP_VIEW = 1u << 0, /* every output aliases the first tensor argument; no kernel */
    SHOAL_OP_IN_PLACE =
        1u << 1, /* writes the first tensor (or tensors) argument and returns it; no meta needed */
    SHOAL_OP_COLLECTIVE = 1u << 2,  /* starts communication */
    SHOAL_OP_WAIT = 1u << 3,        /* ends it */
    SHOAL_OP_SIDE_EFFECT = 1u << 4, /* must be kept even if the result is unused */
    SHOAL_OP_COMPUTE = 1u << 5,     /* has floating-point work worth overlapping */
    SHOAL_OP_FACTORY = 1u << 6,     /* has no tensor argument */
    SHOAL_OP_OVERWRITES = 1u << 7   /* in place, without reading what it writes */
};

typedef struct shoal_op_call_context shoal_op_call_context;

/* Declares the outputs, in order, with shoal_op_output or shoal_op_output_view. Reads shapes, never data. */
typedef shoal_status (*shoal_op_meta)(shoal_op_call_context *call, const shoal_value *arguments);

/* Computes the outputs. Inputs are ready to read; outputs, and what an in-place op writes, to be written. */
typedef shoal_status (*shoal_op_kernel)(shoal_op_call_context *call, const shoal_value *arguments,
                                        shoal_tensor *const *outputs, size_t n_outputs);

/*
 * Gradients of the arguments, through ops, never by touching data, so that backward can be traced.
 * output_gradients[i] is NULL where nothing flowed back. Fills input_gradients[], one per tensor, counted over
 * "tensor", "tensor?" (absent or not) and "tensors" parameters in order; leave NULL where there is none, and
 * skip those for which shoal_op_needs_gradient(call, i) is false.
 * Tensor arguments and outputs that `saves` does not list have a shape but no data here.
 */
typedef shoal_status (*shoal_op_gradient)(shoal_op_call_context *call, const shoal_value *arguments,
                                          shoal_tensor *const *outputs, shoal_tensor *const *output_gradients,
                                          shoal_tensor **input_gradients);

/*
 * How many bytes the kernel will take with shoal_op_workspace, each taking rounded up to a multiple of
 * SHOAL_OP_WORKSPACE_ALIGNMENT. Reads shapes, strides and dtypes, never data.
 */
typedef size_t (*shoal_op_workspace_bytes)(const shoal_op_call_context *call, const shoal_value *arguments,
                                           shoal_tensor *const *outputs, size_t n_outputs);
#define SHOAL_OP_WORKSPACE_ALIGNMENT 64

typedef struct shoal_op_definition {
    size_t struct_size;    /* sizeof(shoal_op_definition) */
    const char *name;      /* a letter, then letters, digits, '_' and '.'; not yet taken */
    const char *signature; /* see above */
    uint32_t flags;
    shoal_op_meta meta;         /* required, except for in-place ops */
    shoal_op_kernel kernel;     /* required, except for views */
    shoal_op_gradient gradient; /* NULL: not differentiable, and an input that needs a gradient is an error */
    /* What gradient reads: parameter names and "result", separated by spaces. "a:b" saves a only when the gradient of
       b is wanted: "self:other other:self" for a product; "a?x|y" only when the op's string argument is x or y. */
    const char *saves;
    const char *doc; /* one sentence */
    void *context;   /* for shoal_op_context */
    /* NULL: none. Plans (shoal/compile.h) have memory ready for what is said here, and allocate what goes beyond. */
    shoal_op_workspace_bytes workspace;
} shoal_op_definition;
#define SHOAL_OP_DEFINITION_INIT SHOAL_SIZED(shoal_op_definition)

/* op_out may be NULL. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_register(const shoal_op_definition *definition,
                                                          const shoal_op **op_out);

/* Inside meta, kernel and gradient functions ----------------------------------------------------------- */

/* One more output, contiguous, on the device of the first tensor argument (factories: the CPU). */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_output(shoal_op_call_context *call, const int64_t *shape,
                                                        int n_dims, shoal_dtype dtype);

/* One more output that looks at the storage of `base`, a tensor argument. Strides and offset in elements. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_output_view(shoal_op_call_context *call, shoal_tensor *base,
                                                             const int64_t *shape, const int64_t *strides,
                                                             int n_dims, int64_t offset);

/* One more output that is the argument itself. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_output_alias(shoal_op_call_context *call,
                                                              shoal_tensor *argument);

/* In a gradient function: whether input_gradients[index] is wanted. */
SHOAL_API bool shoal_op_needs_gradient(const shoal_op_call_context *call, size_t index);

/* In a gradient function: how many outputs the call had. In a meta function: how many were declared so far. */
SHOAL_API size_t shoal_op_n_outputs(const shoal_op_call_context *call);

/* In a kernel: memory for its own use, at a multiple of SHOAL_OP_WORKSPACE_ALIGNMENT, which ends with the call;
   contents undefined. NULL, with an error text, when there is none. */
SHOAL_API void *shoal_op_workspace(shoal_op_call_context *call, size_t bytes);

/* The `context` of the op's definition. */
SHOAL_API void *shoal_op_context(const shoal_op_call_context *call);

/* Sets the thread's error text, printf-like, and returns `status`, which must not be SHOAL_OK. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fail(shoal_status status, const char *format, ...)
#if defined(__GNUC__) || defined(__clang__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

SHOAL_END_DECLS

#endif
