/* SPDX-License-Identifier: MIT */
/*
 * The communication compiler. shoal_compile does all of it: it captures a training step as a graph (shoal/graph.h),
 * lets passes fuse, bucket and move its communication, lowers it to a plan of buffers and steps, and runs that plan
 * every step. The parts can be used alone: shoal_capture, shoal_graph_run_passes, shoal_graph_run, shoal_plan_create.
 *
 * A pass has a name, is deterministic, and leaves a graph that passes shoal_graph_lint and computes the same bits.
 * shoal_graph_run says what these are.
 *
 * Ownership: graphs stay the caller's. A definition is copied; registered passes live as long as the process.
 * Threads: any; a graph is used by one thread at a time.
 * Errors: a graph whose pass failed can be printed and freed, and may be half changed.
 */
#ifndef SHOAL_COMPILE_H
#define SHOAL_COMPILE_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/api.h"
#include "shoal/graph.h"
#include "shoal/status.h"
#include "shoal/tensor.h"
#include "shoal/world.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_pass_options {
    size_t struct_size; /* sizeof(shoal_pass_options) */
    /* A bucket of gradients is closed at so many MiB, the first at one; below 0: after the first each alone. 0: 25;
       for shoal_compile a sixteenth of all gradients, but at least 1 and at most 25. */
    double bucket_size_mb;
    /* Names of passes that are skipped, separated by commas; NULL: none. */
    const char *disabled;
    /* What a pass changed is drawn into files that begin so; NULL: none are written. */
    const char *dot_prefix;
    /* What fuse_ddp_communication runs, separated by commas; NULL: fuse_ddp_with_concat_op and schedule_comm_wait. */
    const char *ddp_passes;
    /* The passes bucket_* begin a new bucket before one grows beyond so many MiB; 0: 2000. */
    double comm_bucket_mb;
} shoal_pass_options;
#define SHOAL_PASS_OPTIONS_INIT SHOAL_SIZED(shoal_pass_options)

/* What passes did, together. */
typedef struct shoal_pass_report {
    size_t struct_size; /* sizeof(shoal_pass_report), set by the caller */
    size_t n_created;   /* nodes made; shoal_graph_run_passes counts them, a pass does not */
    size_t n_erased;    /* nodes erased; counted by shoal_graph_run_passes too */
    size_t n_buckets;   /* of the last pass that made any; the passes bucket_* count those of two or more */
} shoal_pass_report;
#define SHOAL_PASS_REPORT_INIT SHOAL_SIZED(shoal_pass_report)

/* Runs passes by name, in order, and lints after each. options may be NULL, and so may report_out. An unknown name is
   SHOAL_ERR_INVALID, naming the nearest, before any pass runs. The report is written only on success. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_run_passes(shoal_graph *graph, const char *const *passes,
                                                               size_t n_passes,
                                                               const shoal_pass_options *options,
                                                               shoal_pass_report *report_out);

/* What passes there are ---------------------------------------------------------------------------------- */

typedef shoal_status (*shoal_pass_function)(shoal_graph *graph, const shoal_pass_options *options,
                                            shoal_pass_report *report, void *context);

typedef struct shoal_pass_definition {
    size_t struct_size; /* sizeof(shoal_pass_definition) */
    const char *name;   /* a letter, then letters, digits and '_'; not yet taken */
    const char *doc;    /* one sentence */
    shoal_pass_function run;
    void *context;
} shoal_pass_definition;
#define SHOAL_PASS_DEFINITION_INIT SHOAL_SIZED(shoal_pass_definition)

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_pass_register(const shoal_pass_definition *definition);

/* The pass of that index, counted from 0; SHOAL_ERR_INVALID past the last. The strings live as long as the pass. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_pass_at(size_t index, shoal_pass_definition *definition_out);

/* Communication blocks ----------------------------------------------------------------------------------- */

/* A start, its waits, and what only looks at their results (split, reshape, getitem, views). The arrays belong to the
   block. */
typedef struct shoal_comm_block {
    size_t struct_size; /* sizeof(shoal_comm_block), set by the caller */
    shoal_node *start;
    shoal_node *const *inputs; /* of the start */
    size_t n_inputs;
    shoal_node *const *waits;
    size_t n_waits;
    shoal_node *const
        *nodes; /* all members, the start first, then the waits and what follows, in program order */
    size_t n_nodes;
    shoal_node *const *outputs; /* members that others use */
    size_t n_outputs;
    void *memory;
} shoal_comm_block;
#define SHOAL_COMM_BLOCK_INIT SHOAL_SIZED(shoal_comm_block)

/* SHOAL_ERR_INVALID, with the reason, when `start` and what waits for it are not of that form. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_comm_block_get(shoal_node *start, shoal_comm_block *block_out);
SHOAL_API void shoal_comm_block_free(shoal_comm_block *block);

/* Which blocks a call is for. It must not change the graph. */
typedef bool (*shoal_comm_block_filter)(void *context, const shoal_comm_block *block);

/*
 * All blocks whose start calls one of these ops (NULL: any op that starts communication) and that the filter accepts
 * (NULL: all), in program order of their starts. Starts that shoal_comm_block_get refuses are left out. The list is
 * given back with shoal_comm_blocks_free; it holds until the graph changes.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_comm_blocks_get(const shoal_graph *graph,
                                                              const shoal_op *const *ops, size_t n_ops,
                                                              shoal_comm_block_filter filter, void *context,
                                                              shoal_comm_block ***blocks_out,
                                                              size_t *n_blocks_out);
SHOAL_API void shoal_comm_blocks_free(shoal_comm_block **blocks, size_t n_blocks);

/*
 * Moves nodes, such as those of a block or its waits and what follows them, to one place, where they stand in the order
 * of the array. SHOAL_ERR_INVALID, naming two nodes and leaving the graph as it was, when the first has to stay before
 * the second and would not: a node stays behind its inputs and before its users, reads and writes of one memory keep
 * their order, what is in flight is not touched before its wait, and starts and other side effects keep theirs,
 * whatever their groups. Waits may change places. Inputs of the graph and its output cannot be moved. SHOAL_ERR_STATE
 * for a graph that is not in order.
 *
 * The check looks at the whole graph, so a call takes n log n; shoal_node_move_before moves one node without any check.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_move_nodes(shoal_graph *graph, shoal_node *const *nodes,
                                                               size_t n_nodes, shoal_insert_point where);

/* Running ------------------------------------------------------------------------------------------------ */

/*
 * Runs a graph op by op on this rank, each call as shoal_op_call makes it, in the order of the nodes and without
 * gradients. It is what a graph means: passes and plans are compared with it.
 *
 * inputs: a tensor for each placeholder, in their order, with its shape and dtype, contiguous, and with data. What the
 * graph writes in place is written: into the caller's tensors, and into constants of the graph. A graph does not know
 * of inputs that share memory, and passes may change what comes of it.
 *
 * outputs: a tensor for each that the output names, lists flattened in order (a node that gives a list counts as its
 * tensors), and NULL for each none among them; n_outputs is that number. Each tensor is a reference of the caller's
 * (shoal_tensor_unref), which may be one on an input. They may be in flight where the graph does not wait. Nothing else
 * stays: values end with their last user, and the caller's scope gets nothing, so none need be open.
 *
 * Groups: each group of the table becomes the group of `world` with the list that has this rank and the tag
 * "graph:NAME" (a name of more than 58 characters is cut, and a hash follows). So the same name and ranks are the same
 * group in each run and graph, two names are two lanes, and neither is a group that the program made for itself. The
 * world keeps them. `world` may be NULL for a graph without groups.
 *
 * What is compared: all ranks of a group run the same graph, and each call that ranks make together is compared with
 * what the others call, before its result can be read, as in shoal/group.h; a difference is SHOAL_ERR_MISMATCH that
 * names both calls. The graphs as wholes are not: nodes between may differ, and a rank that has fewer calls lets the
 * others wait as long as the group's timeout, as does one that fails alone.
 *
 * Errors begin with the call and the node: "graph_run: %name: ". Before anything has run: SHOAL_ERR_INVALID for inputs
 * that do not fit, an opaque call, a constant without data, a group without this rank or with ranks that the world has
 * not; SHOAL_ERR_STATE for a graph without output or out of order. After a failure no outputs are given, and what is
 * written in place may have been.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_run(const shoal_graph *graph, shoal_world *world,
                                                        shoal_tensor *const *inputs, size_t n_inputs,
                                                        shoal_tensor **outputs, size_t n_outputs);

/* Capturing ---------------------------------------------------------------------------------------------- */

/* A training step: forward, backward, and whatever else calls ops. Sets each of outputs[]; NULL is allowed there. */
typedef shoal_status (*shoal_step_function)(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                            shoal_tensor **outputs, size_t n_outputs);

/*
 * Runs `step` without computing anything, and gives the graph of the ops it called. It gets tensors like `inputs` whose
 * data nobody can touch: asking for data is SHOAL_ERR_STATE with the name of the op whose result it was. What `step`
 * reads from its context is frozen in the graph; numbers that change from step to step are tensors among the inputs.
 *
 * Placeholders of the graph: the inputs, then the other tensors with memory that ops used (parameters, buffers,
 * gradients that are added to), which the graph keeps: shoal_graph_bound_input. Tensors that `step` itself made from
 * memory are constants, with a copy of their data; an output that is one is a clone of it. The output is a list: what
 * `step` gave, then the gradients of leaves that a backward changed: shoal_graph_bound_leaf. In-place ops become
 * out-of-place ones, also through views, and what they write into a placeholder is written by a copy_ at the end;
 * lists, collectives through views and ops of users stay in place (docs/graph.md). A gradient that a leaf has already
 * is added to as eager code does it: it is a placeholder that is written, and no output.
 *
 * Inputs share no memory with each other nor with what `step` uses besides them, and are no results of recorded
 * operations; those that require a gradient are leaves in the step as well. The step sees them as contiguous. A step
 * that writes a constant writes a copy: memory that shoal_from_memory got with a deleter is nobody else's, so each run
 * begins with what it held at the capture. Writing other memory that the step made a tensor of itself is
 * SHOAL_ERR_UNSUPPORTED, because somebody may look at it.
 *
 * Modules that shoal_ddp wrapped, or shoal_fully_shard cut, appear with functional collectives, one for each parameter.
 * A module that was never called is prepared first, as by its first call, which ranks do together. Calls of groups that
 * are no ops (shoal/group.h) inside `step` are SHOAL_ERR_STATE.
 *
 * When it returns, well or badly, gradients, versions, modules, shards and groups are as they were.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_capture(shoal_step_function step, void *context,
                                                      shoal_tensor *const *inputs, size_t n_inputs,
                                                      size_t n_outputs, shoal_graph **graph_out);

/* The tensor that a placeholder, counted from 0, stands for; NULL: an input of the step, or no captured graph.
   Borrowed. */
SHOAL_API shoal_tensor *shoal_graph_bound_input(const shoal_graph *graph, size_t index);
/* The leaf whose gradient an output, counted from 0, is; NULL: what the step gave, an input of a compiled step, or no
   captured graph. Borrowed. */
SHOAL_API shoal_tensor *shoal_graph_bound_leaf(const shoal_graph *graph, size_t index);

/* Plans -------------------------------------------------------------------------------------------------- */

typedef struct shoal_compile_options {
    size_t struct_size; /* sizeof(shoal_compile_options) */
    /* Names of passes, separated by commas; NULL: the default ones (shoal_default_passes); "": none. */
    const char *passes;
    const shoal_pass_options *pass_options; /* NULL: their defaults */
    /* Sums of at most one_shot_max_bytes (0: 131072) that can be made in comm memory are made by a blocking call. */
    bool one_shot;
    size_t one_shot_max_bytes;
    bool no_reuse;        /* each buffer has bytes of its own */
    bool no_comm_buffers; /* collectives work on ordinary memory, and gathers use no window */
} shoal_compile_options;
#define SHOAL_COMPILE_OPTIONS_INIT SHOAL_SIZED(shoal_compile_options)

typedef struct shoal_plan shoal_plan;

/*
 * Collective over the groups of the graph, one after the other in the order of its table: a graph lowered to buffers
 * and steps, with memory. options may be NULL; its passes are not run. Ranks compare the collectives of each group, one
 * by one, and a difference is SHOAL_ERR_MISMATCH on all of them that names both nodes; the group stays usable. What
 * fails on one rank fails on those it shares a group with, and on those that these share one with, and so on. `world`
 * may be NULL for a graph without groups. The graph is not needed afterwards; a plan whose world was closed can only be
 * freed.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_plan_create(const shoal_graph *graph, shoal_world *world,
                                                          const shoal_compile_options *options,
                                                          shoal_plan **plan_out);

/*
 * shoal_graph_run of the graph, with the plan's memory: the same bits, errors that name the node, and the same
 * comparison of what ranks call, with plan and ordinal. What is in flight in the inputs is waited for.
 * SHOAL_ERR_INVALID, before anything runs, for an input that the plan writes and that shares memory with another one,
 * and for one that lies in the plan's own memory (an output that is given as a tensor is moved out of the way). After
 * the first run it allocates nothing, but for point-to-point ops, outputs that are views of inputs, copies of a source
 * that overlaps its target, kernels that are not ours, and transports of messages. Each output is a reference of the
 * caller's on the plan's memory, which the next run overwrites: one that is still referenced then, itself or by a view,
 * is given memory of its own first (n_copied_out counts them). NULL stands for an absent one. An output that is an
 * input, or a constant, is that tensor. One that is exported (shoal_to_dlpack) gets memory of its own when it is: its
 * address changes then, and neither the next run nor the end of the world takes it away. One thread at a time.
 *
 * Errors begin with the call and the node: "plan_run: %name: ". After one, what was started has been waited for, and
 * the plan can run again if its groups can; where it could not be waited for (in a callback, in a forked child) further
 * runs are SHOAL_ERR_STATE.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_plan_run(shoal_plan *plan, shoal_tensor *const *inputs,
                                                       size_t n_inputs, shoal_tensor **outputs,
                                                       size_t n_outputs);

/* Buffers and steps as text; docs/graph.md describes it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_plan_print(const shoal_plan *plan, shoal_graph_write write,
                                                         void *context);
/* Waits for what is in flight. Outputs that are still referenced get memory of their own. NULL is allowed. */
SHOAL_API void shoal_plan_free(shoal_plan *plan);

typedef struct shoal_plan_stats {
    size_t struct_size; /* sizeof(shoal_plan_stats), set by the caller */
    size_t n_steps;
    size_t n_collectives; /* started and blocking */
    size_t n_blocking;
    uint64_t collective_bytes; /* of the widest buffer of each */
    size_t pool_bytes;         /* memory of this rank that steps share */
    size_t output_bytes;
    size_t comm_bytes;   /* symmetric memory of this rank */
    size_t window_bytes; /* of all windows, once per host */
    size_t peak_bytes;   /* of pool and outputs, at the worst step */
    size_t n_copied_out; /* outputs, so far */
} shoal_plan_stats;
#define SHOAL_PLAN_STATS_INIT SHOAL_SIZED(shoal_plan_stats)
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_plan_get_stats(const shoal_plan *plan,
                                                             shoal_plan_stats *stats_out);

/* Lowerings ---------------------------------------------------------------------------------------------- */

/*
 * What a call of an op becomes in a plan. The library has one for each of its collectives; the calls below make one for
 * an op of your own that starts communication. Without one such an op is called as shoal_op_call calls it, and its
 * results are copied.
 *
 *     static shoal_status lower(shoal_lowering *lowering, shoal_node *node, void *context)     scaled_sum(x, group)
 *     {
 *         shoal_arg copy[] = {{SHOAL_ARG_NODE, {node}}, shoal_node_args(node, &n)[0]};
 *         shoal_lowering_call(lowering, copy_, copy, 2);                                       into the result
 *         if (shoal_lowering_can_realize(lowering, node)) {
 *             shoal_lowering_realize(lowering, node);                                          where peers can read it
 *             shoal_lowering_mark_skip_wait(lowering);                                         a blocking call
 *         }
 *         shoal_arg sum[] = {{SHOAL_ARG_NODE, {node}}, "sum", the group};
 *         return shoal_lowering_call(lowering, all_reduce_, sum, 3);
 *     }
 *
 * It is called whenever a graph with the op is lowered, and decides by what all ranks have in common: they make the
 * same collectives. A lowering is valid during the call only.
 */
typedef struct shoal_lowering shoal_lowering;
typedef shoal_status (*shoal_lowering_function)(shoal_lowering *lowering, shoal_node *node, void *context);

typedef struct shoal_lowering_definition {
    size_t struct_size; /* sizeof(shoal_lowering_definition) */
    const char *op;     /* a registered op with SHOAL_OP_COLLECTIVE that has no lowering yet */
    const char *doc;    /* one sentence */
    shoal_lowering_function lower;
    void *context;
} shoal_lowering_definition;
#define SHOAL_LOWERING_DEFINITION_INIT SHOAL_SIZED(shoal_lowering_definition)

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_lowering_register(const shoal_lowering_definition *definition);

/*
 * A call that the plan makes, of an op that works in place or writes into `out`. Its nodes are the lowered one, which
 * stands for its results, and that one's inputs, which it must not write unless the op itself does. A collective
 * becomes what its own lowering makes of it: waits for the lowered node wait for the last one, and each ends the one
 * before.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_lowering_call(shoal_lowering *lowering, const shoal_op *op,
                                                            const shoal_arg *args, size_t n_args);

/* Whether what a node gives (the lowered one, or an input of it) is, or can be, made in comm memory of the lowered
   node's group: the plan allocates it, and no other group has it. */
SHOAL_API bool shoal_lowering_can_realize(shoal_lowering *lowering, const shoal_node *node);
/* Makes it so. SHOAL_ERR_STATE, naming the node, when it cannot be. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_lowering_realize(shoal_lowering *lowering,
                                                               const shoal_node *node);

/* Collectives of the lowered node block, and the waits for it are left out. */
SHOAL_API void shoal_lowering_mark_skip_wait(shoal_lowering *lowering);
/* Whether waits for what a node gives are left out. */
SHOAL_API bool shoal_lowering_should_skip_wait(const shoal_lowering *lowering, const shoal_node *node);

/* Compiling ---------------------------------------------------------------------------------------------- */

typedef struct shoal_compiled shoal_compiled;

/*
 * A step that is captured, changed by passes and lowered when it first runs, and again, with the reason in the log,
 * when an input has another shape or dtype, a gradient is there that was not (or the other way round), a parameter was
 * frozen or thawed, or a setting of a wrapped module is another one (shoal_ddp_set_sync, say). It never falls back to
 * running `step` as it is. Context, and what the step uses, outlive it. Once its world was closed it can only be freed.
 *
 * With SHOAL_COMPILE_CHECK=1 the step is captured again before each run, and a difference is SHOAL_ERR_STATE that shows
 * the first line that differs: `step` depends on something that the graph does not know.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_compile(shoal_world *world, shoal_step_function step,
                                                      void *context, size_t n_outputs,
                                                      const shoal_compile_options *options,
                                                      shoal_compiled **compiled_out);

/*
 * Collective, like the step. outputs[] as the step sets them, a reference of the caller's each; gradients are on the
 * leaves, where optimizers and clipping find them. Both lie in the plan's memory, as shoal_plan_run says; a gradient
 * that the step sets to an input is a view of it, as shoal_set_grad makes one. Inputs are leaves, and no two share
 * memory. A step that runs already, in another thread, say, is busy: SHOAL_ERR_STATE. Ranks compile in the same runs:
 * where inputs are of a new kind on one rank, they are on all, or the run is SHOAL_ERR_MISMATCH.
 *
 * A rank that fails before its plan runs tells the others at once, whom it would have met: they have SHOAL_ERR_PEER
 * with the rank and its reason, and the groups on which they were waiting for it have failed. Where all ranks fail,
 * each has its own error, and groups go on. What fails while plans are compared fails on all, and groups go on, too.
 * Ranks know a step by how many were compiled in the world before it, and a run by how many it had; a rank whose
 * numbers are others, or that compiled without a world, is waited for until the deadline, as is one that fails in the
 * middle of its plan.
 *
 * A gradient that lies elsewhere in memory than when the step was captured, in a flat buffer, say, is copied there for
 * the run, and back.
 *
 * A shard of a parameter that cannot be cut evenly may be written behind the last gather of it, by an optimizer in the
 * step, but not before: that is SHOAL_ERR_UNSUPPORTED.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_compiled_run(shoal_compiled *compiled,
                                                           shoal_tensor *const *inputs, size_t n_inputs,
                                                           shoal_tensor **outputs, size_t n_outputs);
/* NULL is allowed. */
SHOAL_API void shoal_compiled_free(shoal_compiled *compiled);

typedef struct shoal_compile_report {
    size_t struct_size;    /* sizeof(shoal_compile_report), set by the caller */
    size_t n_compiles;     /* so far */
    const char *reason;    /* of the last one; belongs to the compiled step */
    size_t n_nodes_before; /* of the captured graph */
    size_t n_nodes_after;  /* passes */
    size_t n_collectives_before;
    size_t n_collectives_after;
    size_t n_buckets; /* of the last pass that made any */
    uint64_t capture_ns;
    uint64_t passes_ns;
    uint64_t lower_ns;
    shoal_plan_stats plan;
} shoal_compile_report;
#define SHOAL_COMPILE_REPORT_INIT SHOAL_SIZED(shoal_compile_report)
/* SHOAL_ERR_STATE before the first run. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_compiled_get_report(const shoal_compiled *compiled,
                                                                  shoal_compile_report *report_out);
/* The graph after passes, and the plan, of the last run; NULL before. They belong to the compiled step. */
SHOAL_API const shoal_graph *shoal_compiled_graph(const shoal_compiled *compiled);
SHOAL_API const shoal_plan *shoal_compiled_plan(const shoal_compiled *compiled);

/* "dedupe_waits,fuse_ddp_communication,...": what shoal_compile runs by default. */
SHOAL_API const char *shoal_default_passes(void);

SHOAL_END_DECLS

#endif
