/* SPDX-License-Identifier: MIT */
/*
 * The communication compiler. shoal_compile takes the function that makes a training step, captures it as a graph
 * (shoal/graph.h), lets passes fuse, bucket and move its communication, lowers the graph to a plan (steps over memory
 * whose places are fixed), and runs that plan for each step. The result has the same bits as the step that is not
 * compiled.
 *
 *     static shoal_status step(void *model, shoal_tensor *const *inputs, size_t n_inputs,
 *                              shoal_tensor **outputs, size_t n_outputs)
 *     {
 *         outputs[0] = shoal_sum(shoal_module_call_one(model, inputs[0]), NULL, 0, false);
 *         return shoal_backward(outputs[0], NULL);
 *     }
 *
 *     status = shoal_compile(world, step, model, 1, NULL, &compiled);
 *     for (...) {
 *         status = shoal_compiled_run(compiled, &batch, 1, &loss, 1);
 *         ... optimizer over the gradients of the parameters; shoal_tensor_unref(loss) ...
 *     }
 *     shoal_compiled_free(compiled);
 *
 * The parts can also be used alone: shoal_capture, shoal_graph_run_passes, shoal_graph_run and shoal_plan_create.
 * docs/graph.md describes graphs and plans as text, what a capture changes, and the options; examples/12_compile.c is
 * a program.
 *
 * Ownership: what a call makes is freed by the call beside it (shoal_compiled_free, shoal_plan_free); graphs stay the
 * caller's. Definitions are copied; registered passes and lowerings live as long as the process.
 * Threads: any; a graph, a plan and a compiled step are used by one thread at a time.
 * Errors: status and text. A graph whose pass failed may be half changed, and can only be printed and freed.
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
    /* Gradients of DDP are fused into buckets of this many MiB, the first into one of 1 MiB. If it is below 0, after
       the first bucket each gradient has a bucket of its own. 0 means a size
       that follows from all gradients and from the machine: with it, calls cost as much time as the last bucket, which
       nothing hides; at most 25, and for the first bucket, too. */
    double bucket_size_mb;
    /* Names of passes that are skipped, separated by commas. NULL skips none. */
    const char *disabled;
    /* Each pass that changed something draws its graph, for Graphviz, into files whose paths begin so. NULL means no
       files. */
    const char *dot_prefix;
    /* The passes that fuse_ddp_communication runs, separated by commas. NULL means fuse_ddp_with_concat_op,
       schedule_comm_wait. */
    const char *ddp_passes;
    /* The most MiB of a bucket of the passes bucket_*: before a bucket grows beyond it, a new one begins. 0 means
       2000. */
    double comm_bucket_mb;
    /* The machine for which times are estimated: the path of a file that `shoal bench probe` wrote, or a name that is
       built in (`shoal info` lists them). NULL and "" mean SHOAL_MACHINE, and if that is not set, a machine that was
       measured on a processor of this architecture. Ranks compare it: the same numbers on all of them. */
    const char *machine;
} shoal_pass_options;
#define SHOAL_PASS_OPTIONS_INIT SHOAL_SIZED(shoal_pass_options)

/* What the passes of one call did together. */
typedef struct shoal_pass_report {
    size_t struct_size; /* sizeof(shoal_pass_report), set by the caller */
    size_t n_created;   /* nodes made; counted by shoal_graph_run_passes, not by the pass */
    size_t n_erased;    /* nodes erased; counted by shoal_graph_run_passes, too */
    /* The number of buckets of the last pass that made any. Passes bucket_* count only buckets of two or more
       collectives. */
    size_t n_buckets;
} shoal_pass_report;
#define SHOAL_PASS_REPORT_INIT SHOAL_SIZED(shoal_pass_report)

/*
 * Runs passes by name, in order, on a graph, and checks the graph with shoal_graph_lint after each. options and
 * report_out may be NULL; the report is written only on success. SHOAL_ERR_INVALID, before any pass runs: an unknown
 * name (the text has the nearest) or an option that is not allowed. SHOAL_ERR_STATE: the graph does not end with an
 * output.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_run_passes(shoal_graph *graph, const char *const *passes,
                                                               size_t n_passes,
                                                               const shoal_pass_options *options,
                                                               shoal_pass_report *report_out);

/* What passes there are ---------------------------------------------------------------------------------- */

/* A pass: changes a graph. It must be deterministic, because all ranks run it and must get the same collectives, and
   leave a graph that passes shoal_graph_lint and computes the same bits (shoal_graph_run says what these are). */
typedef shoal_status (*shoal_pass_function)(shoal_graph *graph, const shoal_pass_options *options,
                                            shoal_pass_report *report, void *context);

typedef struct shoal_pass_definition {
    size_t struct_size; /* sizeof(shoal_pass_definition) */
    const char *name;   /* a letter, then letters, digits and '_'; not taken yet */
    const char *doc;    /* one sentence; NULL means "" */
    shoal_pass_function run;
    void *context;
} shoal_pass_definition;
#define SHOAL_PASS_DEFINITION_INIT SHOAL_SIZED(shoal_pass_definition)

/* Adds a pass, which can be run by name from then on. examples/13_pass.c has one. SHOAL_ERR_INVALID: the name is taken
   or not allowed, or `run` is NULL. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_pass_register(const shoal_pass_definition *definition);

/* Gives pass number `index`: 0, 1, 2, ..., the library's first. SHOAL_ERR_INVALID past the last. The strings live as
   long as the process. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_pass_at(size_t index, shoal_pass_definition *definition_out);

/* Communication blocks ----------------------------------------------------------------------------------- */

/* A communication block: the node that starts a collective, its waits, and the nodes that only look at their results
   (split, reshape, getitem, views). For passes that move or join communication. The arrays belong to the block. */
typedef struct shoal_comm_block {
    size_t struct_size; /* sizeof(shoal_comm_block), set by the caller */
    shoal_node *start;
    shoal_node *const *inputs; /* of the start */
    size_t n_inputs;
    shoal_node *const *waits;
    size_t n_waits;
    /* All members: the start, then the waits and what follows them, in program order. */
    shoal_node *const *nodes;
    size_t n_nodes;
    shoal_node *const *outputs; /* members that other nodes use */
    size_t n_outputs;
    void *memory;
} shoal_comm_block;
#define SHOAL_COMM_BLOCK_INIT SHOAL_SIZED(shoal_comm_block)

/* Finds the block of a start. shoal_comm_block_free frees its arrays. SHOAL_ERR_INVALID, with the reason: `start` and
   what waits for it are not of that form. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_comm_block_get(shoal_node *start,
                                                             SHOAL_GIVES shoal_comm_block *block_out);
SHOAL_API void shoal_comm_block_free(SHOAL_TAKES shoal_comm_block *block);

/* Tells whether a block is wanted. It must not change the graph. */
typedef bool (*shoal_comm_block_filter)(void *context, const shoal_comm_block *block);

/* Lists all blocks of a graph, in program order of their starts, whose start calls one of `ops` (if that is NULL, any
   op that starts communication) and that `filter` accepts (if it is NULL, all). Starts that shoal_comm_block_get
   refuses are left out. The list is valid until the graph changes; shoal_comm_blocks_free frees it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_comm_blocks_get(const shoal_graph *graph,
                                                              const shoal_op *const *ops, size_t n_ops,
                                                              shoal_comm_block_filter filter, void *context,
                                                              SHOAL_GIVES shoal_comm_block ***blocks_out,
                                                              size_t *n_blocks_out);
SHOAL_API void shoal_comm_blocks_free(SHOAL_TAKES shoal_comm_block **blocks, size_t n_blocks);

/*
 * Moves nodes, such as the nodes of a block, to one place, where they stand in the order of the array. It checks the
 * whole graph, in n log n time; shoal_node_move_before moves one node without a check.
 *
 * SHOAL_ERR_INVALID, naming two nodes and leaving the graph as it was: the first has to stay before the second. A node
 * stays behind its inputs and before its users; reads and writes of the same memory keep their order; memory in flight
 * is not touched before its wait; starts and other side effects keep their order, whatever their groups. Waits may
 * change places. Inputs of the graph and its output cannot be moved. SHOAL_ERR_STATE: the graph is not in order.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_move_nodes(shoal_graph *graph, shoal_node *const *nodes,
                                                               size_t n_nodes, shoal_insert_point where);

/* Running ------------------------------------------------------------------------------------------------ */

/*
 * Runs a graph op by op on this rank, each as shoal_op_call does it, in the order of the nodes and with gradients off.
 * This defines what a graph means: passes and plans are compared with it. All ranks of a group run the same graph.
 *
 * inputs: a tensor for each placeholder, in their order, of its shape and dtype, contiguous, with data. What the graph
 * writes in place is written to the caller's tensors and to the constants of the graph. A graph does not know of
 * inputs that share memory: passes may change what happens to them.
 *
 * outputs: as many as the graph's output names, lists flattened in order (a node that gives a list counts as its
 * tensors), with NULL for each absent one. Each is a reference that the caller releases (shoal_tensor_unref); it may
 * be one to an input. An output is in flight if the graph does not wait for it. No scope need be open; values end with
 * their last user.
 *
 * Groups: a captured graph uses the groups that the step used. In other graphs each group of the table becomes the
 * group of `world` with the list of ranks that has this rank and the tag "graph:NAME" (names of more than 58
 * characters are cut, and a hash follows). So equal names and ranks are the same group in all runs and graphs, and
 * none is a group that the program made itself. The world keeps them. `world` may be NULL if the graph has no groups,
 * or is captured.
 *
 * What ranks compare: each call that they make together, as in shoal/group.h; a difference is SHOAL_ERR_MISMATCH that
 * names both calls. Whole graphs are not compared: if a rank has fewer calls, or fails alone, the others wait as long
 * as the group's timeout.
 *
 * Errors begin with the call and the node: "graph_run: %name: ". Before anything has run: SHOAL_ERR_INVALID for inputs
 * that do not fit, an opaque call, a constant without data, a group without this rank or with ranks that the world
 * does not have; SHOAL_ERR_STATE for a graph without an output or out of order; SHOAL_ERR_NO_MEMORY, which names the
 * largest values, if its values take more memory than is free. After a failure no outputs are given, and memory that
 * is written in place may have been written.
 */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_graph_run(const shoal_graph *graph, shoal_world *world, shoal_tensor *const *inputs, size_t n_inputs,
                SHOAL_GIVES shoal_tensor **outputs, size_t n_outputs);

/* Capturing ---------------------------------------------------------------------------------------------- */

/* A training step: forward pass, backward pass, and whatever else calls ops. Sets each of outputs[]; NULL is allowed
   there. */
typedef shoal_status (*shoal_step_function)(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                            shoal_tensor **outputs, size_t n_outputs);

/*
 * Runs `step` without computing anything, and gives the graph of the ops that it called; the caller frees it. The step
 * gets tensors like `inputs` that have no data: asking for data is SHOAL_ERR_STATE, with the name of the op whose
 * result it was. Everything else that `step` reads, numbers and branches, is frozen in the graph; what changes from
 * step to step must be a tensor among the inputs.
 *
 * Placeholders of the graph are the inputs, then the other tensors with memory that ops used (parameters, buffers,
 * gradients that are added to), which the graph keeps: shoal_graph_bound_input. Tensors that the step makes from
 * memory are constants, with a copy of their data; an output that is a constant is a clone of it. The output is a
 * list: what `step` gave, then the gradients of leaves that the backward pass made: shoal_graph_bound_leaf. A gradient
 * that a leaf has already is added to, as without capture: it is a placeholder that is written, and no output. Ops in
 * place become ops that are not, also through views, and a copy_ at the end writes what a placeholder gets; lists,
 * collectives through views and ops of users stay in place (docs/graph.md).
 *
 * Inputs share no memory with each other nor with anything else that the step uses, and are not results of recorded
 * operations (SHOAL_ERR_INVALID). Inputs that require a gradient are leaves in the step as well. The step sees them as
 * contiguous. A step may write to a constant that shoal_from_memory made with a deleter: each run then begins with a
 * copy of what it held at the capture. Writing to other memory that the step made a tensor of is
 * SHOAL_ERR_UNSUPPORTED, because others may look at it.
 *
 * Modules that shoal_ddp wrapped or shoal_fully_shard cut appear with one functional collective for each parameter. A
 * module that was never called is prepared first, as by its first call, which is collective. Calls on groups that are
 * no ops (shoal/group.h, shoal/window.h) are SHOAL_ERR_STATE inside `step`, with the op to write instead, if there is
 * one (docs/graph.md has the table); the capture then fails, even if the step goes on, unless the call was to end a
 * group. A capture inside a capture is SHOAL_ERR_STATE, too.
 *
 * When the call returns, gradients, versions, modules, shards and groups are as they were before, also after an error.
 */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_capture(shoal_step_function step, void *context, shoal_tensor *const *inputs, size_t n_inputs,
              size_t n_outputs, SHOAL_GIVES shoal_graph **graph_out);

/* Tells whether this thread is in a step that is being captured, by shoal_capture or by the first run of a compiled
   step. For code that steps share with programs, which may print or measure when nothing is captured. What the step
   computes must not depend on it: the plan runs what was captured. */
SHOAL_API bool shoal_is_capturing(void);

/* Returns the tensor that placeholder number `index` of a captured graph stands for. Borrowed. It is NULL if the
   placeholder is an input of the step, or the graph was not captured. */
SHOAL_API shoal_tensor *shoal_graph_bound_input(const shoal_graph *graph, size_t index);
/* Returns the leaf whose gradient output number `index` of a captured graph is. Borrowed. It is NULL if the step gave
   that output, or the leaf is an input of a compiled step, or the graph was not captured. */
SHOAL_API shoal_tensor *shoal_graph_bound_leaf(const shoal_graph *graph, size_t index);

/* Plans -------------------------------------------------------------------------------------------------- */

typedef struct shoal_compile_options {
    size_t struct_size; /* sizeof(shoal_compile_options) */
    /* The passes to run, separated by commas. NULL means shoal_default_passes, and "" means none. */
    const char *passes;
    const shoal_pass_options *pass_options; /* NULL means their defaults */
    /* All-reduces with SHOAL_SUM of at most one_shot_max_bytes (0 means 131072) that can be made in comm memory are
       made by one blocking call. A value that is in comm memory of another group is copied for it. */
    bool one_shot;
    size_t one_shot_max_bytes;
    bool no_reuse;        /* buffers do not share memory */
    bool no_comm_buffers; /* collectives work on ordinary memory, and gathers use no windows */
    /* The most memory that the plan may take: pool, outputs, comm memory and windows together (shoal_plan_stats). 0
       means what is free on this machine and in its control group. */
    size_t max_bytes;
    /* How many variants shoal_compile keeps: 1 to 4096; 0 means 64. Each has memory of its own (shoal_compile_report).
       Ranks compare it. */
    size_t max_variants;
} shoal_compile_options;
#define SHOAL_COMPILE_OPTIONS_INIT SHOAL_SIZED(shoal_compile_options)

typedef struct shoal_plan shoal_plan;

/*
 * Lowers a graph to a plan, and allocates its memory. Collective over the groups of the graph, one after the other in
 * the order of its table. options may be NULL; its passes are not run. `world` may be NULL if the graph has no groups,
 * or is captured. The graph may be freed afterwards. Once the world is closed, a plan can only be freed.
 *
 * Ranks compare the collectives of each group, one by one; a difference is SHOAL_ERR_MISMATCH on all of them that
 * names both nodes, and the group can still be used. If it fails on one rank, it fails on all ranks that share a group
 * with that one, directly or through others.
 *
 * Before any memory is taken, the log says how much it will be (level info), and it is compared with what is free:
 * SHOAL_ERR_NO_MEMORY has the sizes of all parts and names the largest buffers. Each rank compares its own plan; what
 * several ranks of a machine take together can be limited by max_bytes.
 */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_plan_create(const shoal_graph *graph, shoal_world *world, const shoal_compile_options *options,
                  SHOAL_GIVES shoal_plan **plan_out);

/*
 * Runs a plan: what shoal_graph_run does with its graph, with the same bits, in the plan's memory. Inputs in flight
 * are waited for. So are works of the plan's world that were started on raw memory (shoal_group_all_reduce_start, say)
 * and write memory of an input, or of an output of the last run, or read what this run writes; the status of such a
 * work that fails is the status of the run. The program may wait for the work as well. Ranks compare each collective,
 * with its plan and its place in it.
 *
 * Each output is a reference that the caller releases, to a tensor in the plan's memory; NULL stands for an absent
 * one. The next run overwrites that memory: an output that is still referenced then, itself or by a view, gets memory
 * of its own first (n_copied_out counts these). An output that is exported (shoal_to_dlpack) gets memory of its own at
 * once, and its address changes. An output that is an input or a constant is that tensor.
 *
 * After the first run nothing is allocated, except by point-to-point ops, outputs that are views of inputs, copies of
 * a source that overlaps its target, kernels that are not ours, and transports that send messages.
 *
 * SHOAL_ERR_INVALID, before anything runs: an input does not fit, shares memory with another one and is written, or
 * lies in the plan's own memory (outputs of the plan may be given: they are moved away). SHOAL_ERR_STATE: the plan
 * runs already. Errors begin with the call and the node: "plan_run: %name: ". After one, what was started has been
 * waited for, and the plan can run again if its groups can; if it could not be waited for (in a callback, in a forked
 * child), further runs are SHOAL_ERR_STATE.
 */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_plan_run(shoal_plan *plan, shoal_tensor *const *inputs, size_t n_inputs,
               SHOAL_GIVES shoal_tensor **outputs, size_t n_outputs);

/* Writes buffers and steps of a plan as text, which docs/graph.md describes. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_plan_print(const shoal_plan *plan, shoal_graph_write write,
                                                         void *context);
/* Frees a plan, after waiting for what is in flight. Outputs that are still referenced get memory of their own. NULL
   is allowed. */
SHOAL_API void shoal_plan_free(SHOAL_TAKES shoal_plan *plan);

/* What a plan consists of, in numbers and bytes. */
typedef struct shoal_plan_stats {
    size_t struct_size; /* sizeof(shoal_plan_stats), set by the caller */
    size_t n_steps;
    size_t n_collectives; /* started ones and blocking ones together */
    size_t n_blocking;
    uint64_t collective_bytes; /* of the widest buffer of each collective, added up */
    size_t pool_bytes;         /* memory of this rank that steps share */
    size_t output_bytes;
    size_t comm_bytes;   /* symmetric memory of this rank */
    size_t window_bytes; /* of all windows; they exist once per host */
    size_t peak_bytes;   /* of pool and outputs, at the step that uses most */
    size_t n_copied_out; /* outputs that got memory of their own, so far */
} shoal_plan_stats;
#define SHOAL_PLAN_STATS_INIT SHOAL_SIZED(shoal_plan_stats)
/* Gives these numbers. Local. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_plan_get_stats(const shoal_plan *plan,
                                                             shoal_plan_stats *stats_out);

/* Lowerings ---------------------------------------------------------------------------------------------- */

/*
 * Lowerings: what a call of an op becomes in a plan. The library has one for each of its collectives. Register one for
 * an op of your own that starts communication; without it the op is called as shoal_op_call does, and its results are
 * copied.
 *
 *     static shoal_status lower(shoal_lowering *lowering, shoal_node *node, void *context)     scaled_sum(x, group)
 *     {
 *         size_t n;
 *         const shoal_arg *args = shoal_node_args(node, &n);
 *         shoal_arg result = {.kind = SHOAL_ARG_NODE, .as.node = node};
 *         shoal_arg copy[] = {result, args[0]};
 *         shoal_arg sum[] = {result, {.kind = SHOAL_ARG_STRING, .as.string = "sum"}, args[1]};
 *         shoal_status status = shoal_lowering_call(lowering, copy_op, copy, 2);    into the result
 *         if (status == SHOAL_OK && shoal_lowering_can_realize(lowering, node)) {
 *             status = shoal_lowering_realize(lowering, node);                    where peers can read it
 *             shoal_lowering_mark_skip_wait(lowering);                            a blocking call
 *         }
 *         return status == SHOAL_OK ? shoal_lowering_call(lowering, all_reduce_op, sum, 3) : status;
 *     }
 *
 * It is called whenever a graph with the op is lowered. All ranks must make the same collectives, so it decides by
 * what they have in common. `lowering` is valid during the call only.
 */
typedef struct shoal_lowering shoal_lowering;
typedef shoal_status (*shoal_lowering_function)(shoal_lowering *lowering, shoal_node *node, void *context);

typedef struct shoal_lowering_definition {
    size_t struct_size; /* sizeof(shoal_lowering_definition) */
    const char *op;     /* an op of your own with SHOAL_OP_COLLECTIVE that has no lowering yet */
    const char *doc;    /* one sentence */
    shoal_lowering_function lower;
    void *context;
} shoal_lowering_definition;
#define SHOAL_LOWERING_DEFINITION_INIT SHOAL_SIZED(shoal_lowering_definition)

/* Registers a lowering for an op. SHOAL_ERR_INVALID: the op is unknown or the library's, starts no communication, or
   has a lowering already. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_lowering_register(const shoal_lowering_definition *definition);

/*
 * Adds a call of an op that works in place or writes into `out` to the plan. Its arguments may be the lowered node,
 * which stands for its results, and the inputs of that node, which must not be written unless the lowered op itself
 * writes them. A collective is lowered by its own lowering; it first waits for the one that this lowering made before.
 * Waits for the lowered node wait for the last collective. SHOAL_ERR_INVALID: another node, or an op that gives a new
 * tensor.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_lowering_call(shoal_lowering *lowering, const shoal_op *op,
                                                            const shoal_arg *args, size_t n_args);

/* Tells whether a result (of the lowered node, or of an input of it) is, or can be, in comm memory of the lowered
   node's group: the plan allocates it, and no other group has it there. */
SHOAL_API bool shoal_lowering_can_realize(shoal_lowering *lowering, const shoal_node *node);
/* Puts it there. SHOAL_ERR_STATE, naming the node: it cannot be. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_lowering_realize(shoal_lowering *lowering,
                                                               const shoal_node *node);

/* Makes the collectives of the lowered node blocking calls; waits for it are left out. */
SHOAL_API void shoal_lowering_mark_skip_wait(shoal_lowering *lowering);
/* Tells whether waits for the result of a node are left out. */
SHOAL_API bool shoal_lowering_should_skip_wait(const shoal_lowering *lowering, const shoal_node *node);

/* Compiling ---------------------------------------------------------------------------------------------- */

typedef struct shoal_compiled shoal_compiled;

/*
 * Makes a compiled step. It is captured, changed by passes and lowered when it first runs, not here. It is compiled
 * again, with the reason in the log, when an input has another shape or dtype, a gradient is there that was not (or
 * the other way round), a parameter was frozen or thawed, a setting of a wrapped module has changed
 * (shoal_ddp_set_sync, say), gradients are off in the scope and were on, or a module that the step has read or called
 * has changed: a parameter, buffer or child was added or replaced, a hook was added or removed; or a hook on the
 * gradient of a leaf was. Such variants are kept, up to max_variants of the options; then the one that was used least
 * recently is freed as soon as a new one is complete, on all ranks the same one. It never falls back to running `step`
 * uncompiled.
 *
 * Hooks: what module hooks and shoal_on_gradient hooks compute becomes part of the graph. Hooks that a graph cannot
 * have are SHOAL_ERR_STATE when the step is captured, with the name of the leaf: shoal_on_accumulated on leaves that
 * the step reaches, shoal_on_backward_end, and any hook on the gradient of an input. So are steps that change a module
 * which was there before: its parameters, buffers, children and hooks, and hooks on leaves. shoal_on_accumulated hooks
 * on shards run after each run (shoal/fully_shard.h); if one fails, so does the run.
 *
 * Local, but all ranks compile the same steps in the same order. options are copied, and may be NULL. `context`, and
 * all that the step uses, must outlive the compiled step. `world` may be NULL for a step without groups. Once the
 * world is closed, the step can only be freed. SHOAL_ERR_INVALID: a pass is unknown, or max_variants is too large.
 *
 * With SHOAL_COMPILE_CHECK=1 in the environment the step is captured again before each run. If the graph differs, the
 * run is SHOAL_ERR_STATE with the first line that differs, or with the name of the tensor that another one stands for:
 * `step` depends on something that the graph does not know.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_compile(shoal_world *world, shoal_step_function step,
                                                      void *context, size_t n_outputs,
                                                      const shoal_compile_options *options,
                                                      SHOAL_GIVES shoal_compiled **compiled_out);

/*
 * Runs the step, and compiles it first if need be. Collective, like the step. outputs[] are as the step sets them,
 * each a reference that the caller releases. Gradients are on the leaves, where optimizers and clipping find them.
 * Both lie in the plan's memory, as with shoal_plan_run. A gradient that lies elsewhere than when the step was
 * captured (in a flat buffer, say) is copied there for the run, and back. A gradient that the step sets to an input is
 * a view of that input, as shoal_set_grad makes one. Works in flight on memory of inputs, of tensors that the step
 * uses, and of gradients are waited for, as in shoal_plan_run.
 *
 * SHOAL_ERR_INVALID: an input is the result of recorded operations, or two inputs share memory. SHOAL_ERR_STATE: the
 * step runs already, in another thread, say. SHOAL_ERR_MISMATCH: inputs are of a new kind on some ranks only, or ranks
 * would free different variants; ranks compile in the same runs. SHOAL_ERR_UNSUPPORTED: the step writes a shard of a
 * parameter that cannot be cut evenly, and gathers it afterwards (an optimizer in the step may write it behind its last
 * gather).
 *
 * If a rank fails before its plan runs, it tells the ranks that it would have met: they get SHOAL_ERR_PEER with its
 * reason (SHOAL_ERR_MISMATCH if the reason is that ranks differ), and the groups on which they were waiting for it have
 * failed. If all ranks fail, each has its own error, and groups go on; so they do after a failure while plans are
 * compared. Ranks recognize a step by how many were compiled in the world before it, and a run by how many it had
 * before. A rank with other numbers, or that compiled without a world, is waited for until the deadline; so is one that
 * fails in the middle of its plan.
 */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_compiled_run(shoal_compiled *compiled, shoal_tensor *const *inputs, size_t n_inputs,
                   SHOAL_GIVES shoal_tensor **outputs, size_t n_outputs);
/* Frees a compiled step and its plans. Local. NULL is allowed. */
SHOAL_API void shoal_compiled_free(SHOAL_TAKES shoal_compiled *compiled);

/* What the compiler did for the variant that ran last, and how many variants there are. */
typedef struct shoal_compile_report {
    size_t struct_size;    /* sizeof(shoal_compile_report), set by the caller */
    size_t n_compiles;     /* compilations so far, of all variants */
    const char *reason;    /* of the last one; belongs to the compiled step */
    size_t n_nodes_before; /* in the captured graph */
    size_t n_nodes_after;  /* after the passes */
    size_t n_collectives_before;
    size_t n_collectives_after;
    size_t n_buckets; /* of the last pass that made any */
    uint64_t capture_ns;
    uint64_t passes_ns;
    uint64_t lower_ns;
    shoal_plan_stats plan;
    size_t n_variants;     /* that are kept now */
    size_t n_evicted;      /* variants that were freed so far because max_variants were kept */
    size_t variants_bytes; /* of the plans of all kept variants: pool, outputs and comm memory of this rank */
    size_t variants_window_bytes; /* of their windows, which exist once per host */
} shoal_compile_report;
#define SHOAL_COMPILE_REPORT_INIT SHOAL_SIZED(shoal_compile_report)
/* Gives the report. Local. SHOAL_ERR_STATE before the first run. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_compiled_get_report(const shoal_compiled *compiled,
                                                                  shoal_compile_report *report_out);
/* Return the graph after the passes, and the plan, of the variant that ran last; NULL before the first run. They
   belong to the compiled step. */
SHOAL_API const shoal_graph *shoal_compiled_graph(const shoal_compiled *compiled);
SHOAL_API const shoal_plan *shoal_compiled_plan(const shoal_compiled *compiled);

/* Returns the passes that shoal_compile runs by default, separated by commas:
   "remove_dead,dedupe_waits,fuse_ddp_communication,...". They are all that it does to a captured graph. If a program
   names passes of its own, shoal_compile runs remove_dead before them. */
SHOAL_API const char *shoal_default_passes(void);

SHOAL_END_DECLS

#endif
