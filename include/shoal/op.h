/* SPDX-License-Identifier: MIT */
/*
 * Ops: every operation on tensors is a row of one table, with a name, a signature, a kernel and a gradient. Most
 * programs call the typed functions of shoal/ops.h. Use this header to call ops by name (bindings do), and to register
 * your own, which then have gradients and can be captured by shoal_compile. examples/02_own_op.c registers an op with a
 * gradient.
 *
 *     const shoal_op *op;
 *     shoal_value result;
 *     shoal_value arguments[] = {{SHOAL_VALUE_TENSOR, 1, {.tensor = x}}, {SHOAL_VALUE_INT, 0, {.integer = 1}}};
 *     status = shoal_op_find("squeeze", &op);
 *     status = shoal_op_call(op, arguments, 2, &result);           result.as.tensor
 *
 * A signature is a text such as "tensor self, int dim, scalar value = 0 -> tensor": at most 12 parameters, each with a
 * type and a name; the last ones may have defaults. Types of parameters:
 *     tensor  tensor?  tensors  int  ints  float  scalar  bool  dtype  string  group
 * "tensor?" may be absent, "scalar" takes an int or a float. The result is "tensor" or "tensors", a list.
 *
 * Ownership: arguments are borrowed for the call; results belong to the innermost scope. A definition is copied.
 * Registered ops live as long as the process.
 * Threads: any. Ops may be registered while other threads call ops.
 * Errors: status and text, with the op's name in front. A meta, kernel or gradient function reports an error by `return
 * shoal_fail(status, "...")`.
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
    SHOAL_VALUE_NONE = 0, /* no value: of a "tensor?", or for a parameter that should have its default */
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
    size_t count; /* the length of `tensors` and `integers` */
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

/* Finds an op by its name ("narrow", "add_"). SHOAL_ERR_INVALID: there is none; the text has the nearest name. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_find(const char *name, const shoal_op **op_out);

/*
 * Calls an op. Needs an open scope, which then owns the result: a tensor, or a list of tensors with its array. Missing
 * arguments at the end get their defaults. An error is returned and also left in the scope, as by functions that return
 * tensors; if the scope has an error already, that is returned and nothing is called. For collectives use
 * shoal_op_call_collective (shoal/collective.h).
 */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_op_call(const shoal_op *op,
                                                                                 const shoal_value *arguments,
                                                                                 size_t n_arguments,
                                                                                 shoal_value *result_out);

/* The name of an op; "" for NULL. */
SHOAL_API const char *shoal_op_name(const shoal_op *op);

typedef struct shoal_op_info {
    size_t struct_size; /* sizeof(shoal_op_info), set by the caller */
    const char *name;
    const char *signature;
    const char *doc; /* one sentence */
    uint32_t flags;  /* SHOAL_OP_VIEW and the others, below */
} shoal_op_info;
#define SHOAL_OP_INFO_INIT SHOAL_SIZED(shoal_op_info)

/* Describes an op. The strings live as long as the process. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_describe(const shoal_op *op, shoal_op_info *info_out);

/* Returns op number `index`, counted from 0: the built-in ones, then others in the order of registration. Returns NULL
   past the last. */
SHOAL_API const shoal_op *shoal_op_at(size_t index);

/* Registering ------------------------------------------------------------------------------------------ */

enum {
    SHOAL_OP_VIEW = 1u << 0, /* every output is a view of the first tensor argument; there is no kernel */
    SHOAL_OP_IN_PLACE =
        1u << 1, /* writes its first argument (tensor or tensors) and returns it; needs no meta function */
    SHOAL_OP_COLLECTIVE = 1u << 2,  /* starts communication */
    SHOAL_OP_WAIT = 1u << 3,        /* waits for communication */
    SHOAL_OP_SIDE_EFFECT = 1u << 4, /* the compiler keeps it even if its result is unused */
    SHOAL_OP_COMPUTE = 1u << 5,     /* takes long enough to hide communication behind it */
    SHOAL_OP_FACTORY = 1u << 6,     /* has no tensor argument */
    SHOAL_OP_OVERWRITES = 1u << 7   /* in place, and does not read what it overwrites */
};

typedef struct shoal_op_call_context shoal_op_call_context;

/* A meta function declares the outputs of a call, in order, with shoal_op_output, shoal_op_output_view or
   shoal_op_output_alias. It reads shapes, strides and dtypes of the arguments, never data. */
typedef shoal_status (*shoal_op_meta)(shoal_op_call_context *call, const shoal_value *arguments);

/*
 * A kernel computes the outputs. The library has waited for operations in flight: inputs can be read, and outputs and
 * what an in-place op writes can be written. Inputs may be views with any strides: use shoal_tensor_strides, or call
 * shoal_contiguous first.
 */
typedef shoal_status (*shoal_op_kernel)(shoal_op_call_context *call, const shoal_value *arguments,
                                        shoal_tensor *const *outputs, size_t n_outputs);

/*
 * A gradient function computes the gradients of the arguments from the gradients of the outputs. It calls ops and does
 * not touch data itself, so that backward passes can be captured. output_gradients[i] is NULL if no gradient came back
 * to output i. input_gradients[] has an entry for each tensor of the arguments, that is, of "tensor", "tensor?" (absent
 * or not) and "tensors" parameters, counted in order. Leave NULL where there is no gradient, and skip entries for which
 * shoal_op_needs_gradient(call, i) is false. Tensor arguments and outputs that `saves` does not list have a shape here,
 * but no data.
 */
typedef shoal_status (*shoal_op_gradient)(shoal_op_call_context *call, const shoal_value *arguments,
                                          shoal_tensor *const *outputs, shoal_tensor *const *output_gradients,
                                          shoal_tensor **input_gradients);

/*
 * Returns how many bytes the kernel will take with shoal_op_workspace in one call: the sum, each size rounded up to a
 * multiple of SHOAL_OP_WORKSPACE_ALIGNMENT. Reads shapes, strides and dtypes, never data.
 */
typedef size_t (*shoal_op_workspace_bytes)(const shoal_op_call_context *call, const shoal_value *arguments,
                                           shoal_tensor *const *outputs, size_t n_outputs);
/* At which multiple of bytes the memory of shoal_op_workspace begins. */
#define SHOAL_OP_WORKSPACE_ALIGNMENT 64

typedef struct shoal_op_definition {
    size_t struct_size;    /* sizeof(shoal_op_definition) */
    const char *name;      /* a letter, then letters, digits, '_' and '.'; no other op has it */
    const char *signature; /* described at the top of this header */
    uint32_t flags;
    shoal_op_meta meta;         /* required, except by in-place ops */
    shoal_op_kernel kernel;     /* required, except by views, which have none */
    shoal_op_gradient gradient; /* if NULL, a call with an input that needs a gradient is an error */
    /* The tensors whose data the gradient function reads, which are therefore kept until the backward pass: names of
       parameters and "result", separated by spaces. "a:b" keeps a only if the gradient of b is needed (for a product:
       "self:other other:self"); "a?x|y" keeps a only if the op's string argument is x or y. */
    const char *saves;
    const char *doc; /* one sentence */
    void *context;   /* what shoal_op_context returns */
    /* May be NULL. Compiled steps (shoal/compile.h) reserve so much; if a kernel takes more, it is allocated. */
    shoal_op_workspace_bytes workspace;
} shoal_op_definition;
#define SHOAL_OP_DEFINITION_INIT SHOAL_SIZED(shoal_op_definition)

/* Adds an op to the table; it cannot be removed. op_out may be NULL. SHOAL_ERR_INVALID: a field breaks one of the rules
   above, or the name is taken. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_register(const shoal_op_definition *definition,
                                                          const shoal_op **op_out);

/*
 * Adds a kernel of a registered op for another device than the CPU; without one, calls with tensors there are
 * SHOAL_ERR_UNSUPPORTED. The kernel puts its work behind earlier work of the device, as that device's header says, and
 * does not touch the elements itself.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_add_kernel(const shoal_op *op, shoal_device device,
                                                            shoal_op_kernel kernel);

/*
 * States what results of the program's kernels depend on beside their arguments: the BLAS that was found, its version,
 * the instructions that it uses. Ranks compare these texts when FSDP or DDP compare their parameters, and when a
 * compiled step is bound: results of ranks that differ would not have the bits of one process, and nobody would notice.
 * A difference is SHOAL_ERR_MISMATCH on all ranks, with both texts. A rank that has stated nothing is not compared.
 *
 * `library` (1 to 31 bytes) is whose kernels they are; `basis` (at most 1023 bytes) replaces what was stated for it, ""
 * withdraws it. Both are copied. At most 8 libraries. The statement is the process's: ranks that are threads share it.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_set_basis(const char *library, const char *basis);

/* Inside meta, kernel and gradient functions ----------------------------------------------------------- */

/* Declares an output: a new, contiguous tensor on the device of the first tensor argument (for factories, the CPU). */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_output(shoal_op_call_context *call, const int64_t *shape,
                                                        int n_dims, shoal_dtype dtype);

/* Declares an output that is a view of the storage of `base`, a tensor argument. Strides and offset are in elements,
   the offset from the start of the storage. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_output_view(shoal_op_call_context *call, shoal_tensor *base,
                                                             const int64_t *shape, const int64_t *strides,
                                                             int n_dims, int64_t offset);

/* Declares an output that is the argument itself. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_output_alias(shoal_op_call_context *call,
                                                              shoal_tensor *argument);

/* In a gradient function: whether input_gradients[index] is needed. */
SHOAL_API bool shoal_op_needs_gradient(const shoal_op_call_context *call, size_t index);

/* In a kernel: takes memory for the kernel's own use, at a multiple of SHOAL_OP_WORKSPACE_ALIGNMENT, with undefined
   contents. It is freed when the call ends. NULL, with the reason in the error text: there is no memory, or this is no
   kernel. */
SHOAL_API void *shoal_op_workspace(shoal_op_call_context *call, size_t bytes);

/* The `context` of the op's definition. */
SHOAL_API void *shoal_op_context(const shoal_op_call_context *call);

/* Sets the thread's error text, printf-like, and returns `status`. SHOAL_OK counts as SHOAL_ERR_INTERNAL. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fail(shoal_status status, const char *format, ...)
#if defined(__GNUC__) || defined(__clang__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

SHOAL_END_DECLS

#endif
