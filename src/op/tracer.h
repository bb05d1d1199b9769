/* SPDX-License-Identifier: MIT */
/*
 * Tracers watch the ops of a scope. A tracer sees every call before it runs, with complete and checked arguments. It
 * either runs the call (op_execute) and records it, or only computes its shapes (op_trace).
 *
 * A tracer with a `capture` makes a graph of the calls; nothing is computed meanwhile. Layers that do more than call
 * ops ask op_capture_running, and tell the capture what it cannot see in the calls.
 */
#ifndef OP_TRACER_H
#define OP_TRACER_H

#include "op/op.h"

struct op_dependence; /* dependence.h */
struct op_tracer;

/* What a layer does after each run of a compiled step, besides what the graph does. */
struct op_run_end {
    /* Called once, when the step has been captured: an error refuses the capture. May be NULL. */
    shoal_status (*check)(void *context);
    /* The graph has run, and gradients are on their leaves. An error is that of the run. */
    shoal_status (*run)(void *context);
    void (*release)(void *context); /* the graph is freed */
    void *context;
};

/* How layers tell a capture what it cannot see. Called in the scope that is traced. */
struct op_capture {
    /*
     * Makes a tensor an input of the graph, under this name. It must have memory and outlive the capture. Other tensors
     * with memory become inputs by themselves when a call uses them. This is for tensors that need a name, or that
     * cover the memory of `source` (if that is not NULL) in another shape: work in flight on the source is in flight
     * here, too.
     */
    shoal_status (*add_input)(struct op_tracer *tracer, shoal_tensor *tensor, shoal_tensor *source,
                              const char *name);
    /* How a tensor is called in the module that it belongs to: "h.0.attn.c_proj.bias". An input that it becomes has that
       name if the tensor covers its storage and has no name itself. The first name of a storage holds. */
    shoal_status (*name_tensor)(struct op_tracer *tracer, const shoal_tensor *tensor, const char *name);
    /* From now on the storage of `target` holds `value`, which has the same shape and dtype: for parameters that are
       gathered. Views of the target follow. No version changes. NULL: it holds nothing, and a call that uses it is
       SHOAL_ERR_STATE, as where memory was released. */
    shoal_status (*rebind)(struct op_tracer *tracer, shoal_tensor *target, shoal_tensor *value);
    /*
     * Call before the gradient of a leaf changes. The gradient that it has at the end of the capture is an output
     * of the graph; the one it had before the first call is then restored. For leaves that a backward pass
     * reaches, autograd calls this.
     */
    shoal_status (*note_leaf)(struct op_tracer *tracer, shoal_tensor *leaf);
    /* The step was told whether a tensor requires a gradient, or will change that now: the graph is valid as long as the
       tensor is as it was before the first such call. */
    shoal_status (*note_asked)(struct op_tracer *tracer, shoal_tensor *tensor);
    /* Calls from now on belong to that unit of a sharded model; to none if it is NULL. */
    shoal_status (*set_unit)(struct op_tracer *tracer, const char *unit);
    /* The graph is valid as long as the state is the same as at the end of the capture. May be called again for the
       same dependence. */
    shoal_status (*depend)(struct op_tracer *tracer, struct op_dependence *dependence);
    /*
     * What the next collective on the group is for: "gradient of 0.weight". Ranks compare these texts, in order, before
     * they run the graph: the calls themselves look alike for parameters of equal shape.
     */
    shoal_status (*label)(struct op_tracer *tracer, const struct shoal_group *group, const char *text);
    /* A call that is not an op has failed, with the thread's error text. This keeps the text: the step may make other
       calls before it returns. */
    void (*note_failure)(struct op_tracer *tracer, shoal_status status);
    /* Something was done, in a call that cannot fail, that the graph will not do again: the capture fails at its end, with
       the thread's error text. */
    void (*refuse)(struct op_tracer *tracer, shoal_status status);
    /* Adds something that is done after each run of a compiled step, in the order of these calls. If this fails, `release`
       is not called. */
    shoal_status (*after_run)(struct op_tracer *tracer, const struct op_run_end *end);
    /* Calls `restore` when the capture ends, also after a failure; the function that was added last is called first. If
       at_end itself fails, `restore` is not called. */
    shoal_status (*at_end)(struct op_tracer *tracer, void (*restore)(void *context), void *context);
};

struct op_tracer {
    shoal_status (*call)(struct op_tracer *tracer, const shoal_op *op, const shoal_value *arguments,
                         shoal_value *result_out);
    const struct op_capture *capture; /* NULL if calls run as usual */
    uint64_t number;                  /* in a capture: differs from that of any other capture; not 0 */
    uint64_t latest_change; /* in a capture: what was there before it has no larger number (base/changes.h) */
    bool is_compiled;       /* in a capture: of a compiled step, which does what after_run adds */
    uint64_t oldest_record; /* in a capture: older records of autograd are not walked (autograd/node.h) */
};

/* Sets the tracer of the innermost scope, and of scopes that are opened inside it from now on. NULL removes it.
   SHOAL_ERR_STATE if no scope is open. */
shoal_status op_set_tracer(struct op_tracer *tracer);

/* The tracer of the innermost scope if it captures; otherwise NULL. */
struct op_tracer *op_capture_running(void);

/*
 * Makes a call with complete arguments without computing it. Outputs are on the device of the arguments, and their
 * storages have no memory. No kernel runs, and nothing is waited for. Versions change, and the tape records, as if the
 * op had run. Access to the data of an output is SHOAL_ERR_STATE, with the name of this op.
 */
shoal_status op_trace(const shoal_op *op, const shoal_value *arguments, shoal_value *result_out);

#endif
