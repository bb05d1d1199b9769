/* SPDX-License-Identifier: MIT */
/*
 * The life of a call:
 *
 *   shoal_op_call  scope open and without error? arguments complete and of the right kind?
 *        |
 *     tracer       if the scope has one: it decides what happens
 *        |
 *   op_execute     meta declares the outputs -> tape prepares -> wait for inputs -> kernel -> versions -> tape commits
 *
 * On the meta device the kernel is left out: the outputs have shapes only.
 */
#ifndef OP_DISPATCH_H
#define OP_DISPATCH_H

#include "op/op.h"

/* Runs a call whose arguments are complete: one value per parameter. For tracers. */
shoal_status op_execute(const shoal_op *op, const shoal_value *arguments, shoal_value *result_out);

/*
 * Computes the outputs' shapes only, for graphs. Arguments are checked as by shoal_op_call. All tensor arguments must
 * be on the meta device, and so are new outputs. No tracer sees the call, no kernel runs, and no version changes.
 * Outputs belong to the innermost scope, which does not keep the error if the call fails.
 */
shoal_status op_infer(const shoal_op *op, const shoal_value *given, size_t n_given, shoal_value *result_out);

struct shoal_op_call_context;

/*
 * op_infer for a built-in op, without a scope. The outputs are in call_out->outputs, with one reference each; new
 * tensors are mostly in memory of the slab. op_infer_end frees the array, but not the references.
 */
shoal_status op_infer_begin(const shoal_op *op, const shoal_value *given, size_t n_given, struct slab *slab,
                            struct shoal_op_call_context *call_out);
void op_infer_end(struct shoal_op_call_context *call);

/*
 * SHOAL_ERR_STATE for a tensor that is not recorded although an in-place op has given its storage a history: using it
 * would lose that gradient. Detached tensors are not recorded on purpose, and pass.
 */
shoal_status op_check_current(const shoal_tensor *tensor);

/* Declares an output that is a view of an argument with another dtype. The layout counts elements of `dtype`. */
shoal_status op_output_view_as(shoal_op_call_context *call, shoal_tensor *base, shoal_dtype dtype,
                               const struct layout *layout);

struct op_scratch; /* workspace.c */

/* How a call is made. */
enum op_mode {
    OP_RUNS,   /* op_execute */
    OP_INFERS, /* op_infer: the device is meta, whatever the arguments say */
    OP_TRACES  /* op_trace: what is new has no memory */
};

/* Most outputs have a place on the stack. */
#define OP_INLINE_OUTPUTS 8

struct op_output {
    shoal_tensor *tensor; /* one reference is ours */
    bool is_argument;     /* an argument itself: not for the scope to own */
};

struct shoal_op_call_context {
    const shoal_op *op;
    const shoal_value *arguments; /* complete; NULL in gradient functions */
    shoal_device device;          /* of the first tensor argument */
    enum op_mode mode;
    /* Where new tensors are made, which are of the meta device then; NULL if each is made by itself. */
    struct slab *slab;
    struct op_output *outputs;
    size_t n_outputs;
    size_t capacity;
    struct op_output inline_outputs[OP_INLINE_OUTPUTS];
    const bool *needs_gradient; /* in gradient functions: one per differentiable tensor; NULL elsewhere */
    size_t n_needs_gradient;
    /* In kernels: what shoal_op_workspace gives. First memory of a plan, then memory that is freed after the call. */
    bool is_kernel;
    char *workspace; /* at a multiple of SHOAL_OP_WORKSPACE_ALIGNMENT; NULL if there is none */
    size_t workspace_bytes;
    struct op_scratch *scratches;
};

/* Whoever calls a kernel itself, as op_execute does, calls op_context_init, sets the fields above, and afterwards frees
   scratch memory with this. */
void op_free_scratches(shoal_op_call_context *call);
/* Memory of a device for the kernel's own use, freed as that of shoal_op_workspace is. */
shoal_status op_device_scratch(shoal_op_call_context *call, shoal_device device, size_t bytes,
                               struct address *address_out);
/* Returns how much workspace the kernel of this call needs; 0 if it needs none. */
size_t op_workspace_bytes(const shoal_op *op, const shoal_value *arguments, shoal_tensor *const *outputs,
                          size_t n_outputs);
/* What a request for `bytes` takes of a workspace, with alignment. SIZE_MAX if that is too much. */
static inline size_t op_round_workspace(size_t bytes)
{
    const size_t mask = SHOAL_OP_WORKSPACE_ALIGNMENT - 1;
    return bytes > SIZE_MAX - mask ? SIZE_MAX : (bytes + mask) & ~mask;
}

/* Makes an empty context. The gradient engine also calls it, for gradient functions. */
void op_context_init(shoal_op_call_context *call, const shoal_op *op);

#endif
