/* SPDX-License-Identifier: MIT */
/*
 * Passes over graphs (shoal/graph.h): they fuse, bucket and move communication. A pass has a name, is deterministic, and leaves
 * a graph that passes shoal_graph_lint and computes the same bits. shoal_graph_run says what these are.
 *
 * Ownership: graphs stay the caller's. A definition is copied; registered passes live as long as the process.
 * Threads: any; a graph is used by one thread at a time.
 * Errors: a graph whose pass failed can be printed and freed, and may be half changed.
 */
#ifndef SHOAL_COMPILE_H
#define SHOAL_COMPILE_H

#include <stddef.h>

#include "shoal/api.h"
#include "shoal/graph.h"
#include "shoal/status.h"
#include "shoal/tensor.h"
#include "shoal/world.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_pass_options {
    size_t struct_size; /* sizeof(shoal_pass_options) */
    /* A bucket of gradients is closed at so many MiB, the first at one; 0: 25; below 0: after the first each alone. */
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
    size_t n_created;   /* nodes */
    size_t n_erased;
    size_t n_buckets; /* of the last pass that made any; the passes bucket_* count those of two or more */
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

/* A start, its waits, and what only looks at their results (split, reshape, getitem, views). The arrays belong to the block. */
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

/* Running ------------------------------------------------------------------------------------------------ */

/*
 * Runs a graph op by op on this rank, each call as shoal_op_call makes it, in the order of the nodes and without gradients. It is
 * what a graph means: passes and plans are compared with it.
 *
 * inputs: a tensor for each placeholder, in their order, with its shape and dtype, contiguous, and with data. What the graph
 * writes in place is written: into the caller's tensors, and into constants of the graph. A graph does not know of inputs that
 * share memory, and passes may change what comes of it.
 *
 * outputs: a tensor for each that the output names, lists flattened in order (a node that gives a list counts as its tensors);
 * n_outputs is that number. Each is a reference of the caller's (shoal_tensor_unref), which may be one on an input. They may be
 * in flight where the graph does not wait. Nothing else stays: values end with their last user, and the caller's scope gets
 * nothing, so none need be open.
 *
 * Groups: each group of the table becomes the group of `world` with the list that has this rank and the tag "graph:NAME" (a name
 * of more than 58 characters is cut, and a hash follows). So the same name and ranks are the same group in each run and graph,
 * two names are two lanes, and neither is a group that the program made for itself. The world keeps them. `world` may be NULL for
 * a graph without groups.
 *
 * What is compared: all ranks of a group run the same graph, and each call that ranks make together is compared with what the
 * others call, before its result can be read, as in shoal/group.h; a difference is SHOAL_ERR_MISMATCH that names both calls. The
 * graphs as wholes are not: nodes between may differ, and a rank that has fewer calls lets the others wait as long as the group's
 * timeout, as does one that fails alone.
 *
 * Errors begin with the call and the node: "graph_run: %name: ". Before anything has run: SHOAL_ERR_INVALID for inputs that do not
 * fit, an opaque call, a constant without data, a group without this rank or with ranks that the world has not; SHOAL_ERR_STATE
 * for a graph without output or out of order. After a failure no outputs are given, and what is written in place may have been.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_run(const shoal_graph *graph, shoal_world *world,
                                                        shoal_tensor *const *inputs, size_t n_inputs,
                                                        shoal_tensor **outputs, size_t n_outputs);

SHOAL_END_DECLS

#endif
