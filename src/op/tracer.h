/* SPDX-License-Identifier: MIT */
/*
 * Who watches the operations of a scope. A tracer sees every call before it runs, with arguments complete and
 * checked, and decides: run it (op_execute) and note it, or answer from shapes alone (op_trace).
 *
 * A tracer with a `capture` makes a graph of what is called, and nothing is computed meanwhile. Layers that do more
 * than call ops ask op_capture_running, and tell the capture what calls do not say.
 */
#ifndef OP_TRACER_H
#define OP_TRACER_H

#include "op/op.h"

struct op_dependence; /* dependence.h */
struct op_tracer;

/* What a capture is told, in the scope that is traced. */
struct op_capture {
    /*
     * The tensor, which has memory and outlives the capture, is an input of the graph under that name. Tensors with
     * memory that calls use become inputs on their own; this is for those that need a name, or look at the memory of
     * `source` (NULL: none) in another shape: what is in flight in the source is in flight here.
     */
    shoal_status (*add_input)(struct op_tracer *tracer, shoal_tensor *tensor, shoal_tensor *source,
                              const char *name);
    /* From now on the storage of `target` holds what `value` is, which has the same shape and dtype: a parameter
       that was gathered (again). Views of the target follow. No version changes. */
    shoal_status (*rebind)(struct op_tracer *tracer, shoal_tensor *target, shoal_tensor *value);
    /*
     * The gradient of a leaf is about to change, for the first time or again. It is put back when the capture ends;
     * what it is by then is an output of the graph. Leaves that a backward reaches are noted by autograd.
     */
    shoal_status (*note_leaf)(struct op_tracer *tracer, shoal_tensor *leaf);
    /* Calls from now on belong to that unit of a sharded model; NULL: to none. */
    shoal_status (*set_unit)(struct op_tracer *tracer, const char *unit);
    /* The graph is right as long as the state is what it is when the capture has ended. */
    shoal_status (*depend)(struct op_tracer *tracer, struct op_dependence *dependence);
    /* A call that is no op has failed, with the thread's error text: the step may call others before it says so. */
    void (*note_failure)(struct op_tracer *tracer, shoal_status status);
    /* Calls `restore` when the capture ends, well or badly: the last one first. Not when this call fails. */
    shoal_status (*at_end)(struct op_tracer *tracer, void (*restore)(void *context), void *context);
};

struct op_tracer {
    shoal_status (*call)(struct op_tracer *tracer, const shoal_op *op, const shoal_value *arguments,
                         shoal_value *result_out);
    const struct op_capture *capture; /* NULL: calls run as usual */
    uint64_t oldest_record; /* of a capture: what autograd recorded before is not walked (autograd/node.h) */
};

/* For the innermost scope and those opened inside it from now on; NULL ends it. SHOAL_ERR_STATE without a scope. */
shoal_status op_set_tracer(struct op_tracer *tracer);

/* The tracer of the innermost scope if it captures; otherwise NULL. */
struct op_tracer *op_capture_running(void);

/*
 * A call whose arguments are complete, from shapes alone: outputs have storages without memory on the arguments' own
 * device, no kernel runs and nobody waits. Versions count, and the tape records, as if it had run. Touching the data of
 * an output is SHOAL_ERR_STATE with the name of this op.
 */
shoal_status op_trace(const shoal_op *op, const shoal_value *arguments, shoal_value *result_out);

#endif
