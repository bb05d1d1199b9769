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
 * What a call would give, from shapes alone: a call as shoal_op_call checks it, but no tracer sees it, no kernel runs,
 * nothing counts as written, and what is new is on the meta device, as all tensor arguments are. In the innermost
 * scope, which does not hear of an error. For graphs.
 */
shoal_status op_infer(const shoal_op *op, const shoal_value *given, size_t n_given, shoal_value *result_out);

struct shoal_op_call_context;

/*
 * op_infer of a built-in op without a scope, on tensors that are all of the meta device: what the call declares is in
 * call_out->outputs, a reference each, and most of it in memory of the slab. op_infer_end lets go of the array, and
 * keeps the references.
 */
shoal_status op_infer_begin(const shoal_op *op, const shoal_value *given, size_t n_given, struct slab *slab,
                            struct shoal_op_call_context *call_out);
void op_infer_end(struct shoal_op_call_context *call);

/*
 * SHOAL_ERR_STATE for a tensor outside the record whose storage an in-place op gave a gradient: using it would drop
 * that gradient. Detached tensors are outside on purpose.
 */
shoal_status op_check_current(const shoal_tensor *tensor);

/* Declares an output that looks at an argument as another dtype; the layout counts in elements of that. */
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
    struct slab
        *slab; /* where new tensors are made, which are of the meta device then; NULL: each by itself */
    struct op_output *outputs;
    size_t n_outputs;
    size_t capacity;
    struct op_output inline_outputs[OP_INLINE_OUTPUTS];
    const bool *needs_gradient; /* in gradient functions: one per differentiable tensor; NULL elsewhere */
    size_t n_needs_gradient;
    /* Of kernels: what shoal_op_workspace gives. First what a plan has ready, then memory that ends with the call. */
    bool is_kernel;
    char *workspace; /* at a multiple of SHOAL_OP_WORKSPACE_ALIGNMENT; NULL: none */
    size_t workspace_bytes;
    struct op_scratch *scratches;
};

/* What op_execute does around a kernel, for those who call it themselves: op_context_init, the fields above, and at
   the end this. */
void op_free_scratches(shoal_op_call_context *call);
/* What the kernel of that call will take; 0: nothing. */
size_t op_workspace_bytes(const shoal_op *op, const shoal_value *arguments, shoal_tensor *const *outputs,
                          size_t n_outputs);
/* A taking of so many bytes, as it counts there; SIZE_MAX when there can be none. */
static inline size_t op_round_workspace(size_t bytes)
{
    const size_t mask = SHOAL_OP_WORKSPACE_ALIGNMENT - 1;
    return bytes > SIZE_MAX - mask ? SIZE_MAX : (bytes + mask) & ~mask;
}

/* The gradient engine calls gradient functions with a context of its own. */
void op_context_init(shoal_op_call_context *call, const shoal_op *op);

#endif
