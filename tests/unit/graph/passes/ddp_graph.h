/* SPDX-License-Identifier: MIT */
/* Graphs with gradients that are averaged one by one, and what tests of passes ask of graphs. */
#ifndef TESTS_UNIT_GRAPH_DDP_GRAPH_H
#define TESTS_UNIT_GRAPH_DDP_GRAPH_H

#include "fixtures/graph_build.h"
#include "graph/ir/graph.h"
#include "shoal/compile.h"

#define CONCAT "fuse_ddp_with_concat_op"
#define COALESCED "fuse_ddp_with_coalesced_op"
#define SCHEDULE "schedule_comm_wait"
#define DRIVER "fuse_ddp_communication"

/* An input of that shape, and a gradient that is worked out from it. */
static inline shoal_node *ddp_gradient_of(shoal_graph *graph, const int64_t *shape, int n_dims,
                                          shoal_dtype dtype)
{
    shoal_node *input = NULL;
    (void)CHECK_OK(shoal_graph_placeholder(graph, "p", shape, n_dims, dtype, &input));
    return BUILD_CALL(graph, "neg", arg_node(input));
}

static inline shoal_node *ddp_gradient(shoal_graph *graph, int64_t count)
{
    return ddp_gradient_of(graph, &count, 1, SHOAL_F32);
}

struct ddp_chain {
    const char *start;  /* NULL: all_reduce */
    const char *reduce; /* NULL: sum */
    const char *group;  /* NULL: BUILD_GROUP */
    double divisor;     /* 0: no division */
};

/* Division, start and wait for a gradient. */
static inline shoal_node *ddp_chain(shoal_graph *graph, shoal_node *gradient, struct ddp_chain chain)
{
    shoal_node *input = gradient;
    if (chain.divisor != 0) {
        input = BUILD_CALL(graph, "div_scalar", arg_node(gradient), arg_float(chain.divisor));
    }
    shoal_node *start = BUILD_CALL(graph, chain.start ? chain.start : "all_reduce", arg_node(input),
                                   arg_string(chain.reduce ? chain.reduce : "sum"),
                                   arg_group(chain.group ? chain.group : BUILD_GROUP));
    return build_wait(graph, start);
}

static inline shoal_node *ddp_average(shoal_graph *graph, int64_t count)
{
    return ddp_chain(graph, ddp_gradient(graph, count), (struct ddp_chain){.divisor = 8});
}

/* The output of any number of nodes. */
static inline void ddp_output(shoal_graph *graph, shoal_node *const *nodes, size_t n_nodes)
{
    shoal_arg *items = calloc(n_nodes + 1, sizeof *items);
    for (size_t i = 0; i < n_nodes && items; i++) {
        items[i] = arg_node(nodes[i]);
    }
    shoal_arg list = arg_list(items, n_nodes);
    if (items && !build_has_null(items, n_nodes)) {
        (void)CHECK_OK(shoal_graph_output(graph, &list, NULL));
    }
    free(items);
}

static inline size_t ddp_count(const shoal_graph *graph, const char *target)
{
    size_t count = 0;
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        count += strcmp(shoal_node_target(node), target) == 0 ? 1 : 0;
    }
    return count;
}

/* The number-th node that calls `target`; NULL past the last. */
static inline shoal_node *ddp_find(const shoal_graph *graph, const char *target, size_t number)
{
    for (shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        if (strcmp(shoal_node_target(node), target) == 0 && number-- == 0) {
            return node;
        }
    }
    return NULL;
}

/* Runs one pass; the number of buckets. */
static inline size_t ddp_run(shoal_graph *graph, const char *pass, double bucket_size_mb)
{
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
    options.bucket_size_mb = bucket_size_mb;
    (void)CHECK_OK(shoal_graph_run_passes(graph, &pass, 1, &options, &report));
    return report.n_buckets;
}

#endif
