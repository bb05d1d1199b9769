/* SPDX-License-Identifier: MIT */
/* Estimates the time of nodes, and that of a graph by walking through it with a clock. */
#include "graph/analysis/estimate.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/try.h"
#include "graph/analysis/constraints.h"
#include "graph/analysis/memory.h"
#include "tensor/tensor.h"

#define LONGEST_NS 1e15

enum work {
    ATTENTION,
    FUNCTION
};

static const struct cost {
    const char *op;
    enum work work;
    double weight;
} costs[] = {
#define COST(op_, work_, weight_) {op_, work_, weight_},
#include "graph/analysis/costs.def"
#undef COST
};

/* Nodes ------------------------------------------------------------------------------------------------- */

static double count_of(const struct shoal_node *node, size_t index)
{
    return index < node->n_values ? (double)shoal_tensor_count(node->values[index]) : 0;
}

static double bytes_given(const struct shoal_node *node)
{
    double bytes = 0;
    for (size_t i = 0; i < node->n_values; i++) {
        const shoal_tensor *value = node->values[i];
        bytes += (double)shoal_tensor_count(value) * (double)shoal_dtype_bytes(shoal_tensor_dtype(value));
    }
    return bytes;
}

static double bytes_taken(const struct shoal_node *node)
{
    double bytes = 0;
    for (size_t i = 0; i < node->n_inputs; i++) {
        bytes += bytes_given(node->inputs[i]);
    }
    return bytes;
}

/* Returns the operations of an op with SHOAL_OP_COMPUTE, as of a matrix product: twice the elements of the result,
   times the length of the sums. */
static double count_product(const struct shoal_node *node)
{
    if (node->n_inputs == 0 || node->n_values == 0 || node->inputs[0]->n_values == 0) {
        return 0;
    }
    const shoal_tensor *left = node->inputs[0]->values[0];
    int n_dims = shoal_tensor_n_dims(left);
    double length = n_dims > 0 ? (double)shoal_tensor_shape(left)[n_dims - 1] : 1;
    return 2 * length * count_of(node, 0);
}

/* Queries are [samples, tokens, heads, size]; of a packed op, the first input or the result has three of them. */
static double count_attention(const struct shoal_node *node)
{
    const struct shoal_node *first = node->n_inputs > 0 ? node->inputs[0] : NULL;
    if (!first || first->n_values == 0 || shoal_tensor_n_dims(first->values[0]) < 2) {
        return 0;
    }
    double taken = count_of(first, 0);
    double given = count_of(node, 0);
    return 4 * (taken < given ? taken : given) * (double)shoal_tensor_shape(first->values[0])[1];
}

static double count_largest(const struct shoal_node *node)
{
    double largest = count_of(node, 0);
    for (size_t i = 0; i < node->n_inputs; i++) {
        double count = count_of(node->inputs[i], 0);
        largest = count > largest ? count : largest;
    }
    return largest;
}

static int compare_cost(const void *name, const void *cost)
{
    return strcmp(name, ((const struct cost *)cost)->op);
}

/* What a call does beside reading and writing its tensors. */
static double work_ns(const struct machine *machine, const struct shoal_node *node)
{
    const struct cost *cost =
        bsearch(node->target, costs, sizeof costs / sizeof costs[0], sizeof costs[0], compare_cost);
    if (cost && cost->work == FUNCTION) {
        return cost->weight * count_largest(node) / machine->functions_per_ns;
    }
    if (cost) {
        return cost->weight * count_attention(node) / machine->operations_per_ns;
    }
    return (node_flags(node) & SHOAL_OP_COMPUTE) != 0 ? count_product(node) / machine->operations_per_ns : 0;
}

static size_t count_ranks(const struct shoal_node *node)
{
    for (size_t i = 0; i < node->n_args; i++) {
        if (node->args[i].kind == SHOAL_ARG_GROUP) {
            const struct graph_group *group = graph_find_group(node->graph, node->args[i].as.string);
            return group ? group->size : 1;
        }
    }
    return 1;
}

static double collective_ns(const struct machine *machine, const struct shoal_node *node)
{
    static const char *const ops[] = {"all_gather", "reduce_scatter"};
    const char *op = "all_reduce";
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        op = strncmp(node->target, ops[i], strlen(ops[i])) == 0 ? ops[i] : op;
    }
    size_t n_ranks = count_ranks(node);
    const struct machine_collective *row = machine_find(machine, op, n_ranks);
    double taken = bytes_taken(node);
    double given = bytes_given(node);
    return n_ranks > 1 ? row->latency_ns + (taken > given ? taken : given) / row->bytes_per_ns
                       : machine->call_ns;
}

/* Limits the time, because shapes without data may have any size. */
static uint64_t whole_ns(double ns)
{
    return ns < LONGEST_NS ? (uint64_t)ns : (uint64_t)LONGEST_NS;
}

uint64_t estimate_node_ns(const struct machine *machine, const struct shoal_node *node)
{
    uint32_t flags = node_flags(node);
    if (node->kind != SHOAL_NODE_CALL || (flags & (SHOAL_OP_VIEW | SHOAL_OP_WAIT)) != 0 ||
        (node->is_alias && (flags & SHOAL_OP_IN_PLACE) == 0)) {
        return 0;
    }
    if ((flags & SHOAL_OP_COLLECTIVE) != 0) {
        return whole_ns(collective_ns(machine, node));
    }
    double bytes = bytes_taken(node) + bytes_given(node);
    return whole_ns(machine->call_ns + bytes / machine->touched_bytes_per_ns + work_ns(machine, node));
}

double estimate_byte_ns(const struct machine *machine, size_t n_ranks)
{
    return 1 / machine_find(machine, "all_reduce", n_ranks)->bytes_per_ns;
}

/* Graphs ------------------------------------------------------------------------------------------------ */

/* A walk through a graph. Times are since its beginning. */
struct walk {
    const struct machine *machine;
    double now_ns;        /* the rank's own thread */
    double in_flight_ns;  /* what is left of collectives in flight, all together */
    double *ends_ns;      /* by id of starts: when it ends */
    double *group_end_ns; /* by number of the group: when its last collective ends */
};

/* Compute, while perhaps something is in flight, which takes its share of the time. */
static void compute(struct walk *walk, double ns)
{
    double beside = walk->in_flight_ns < ns ? walk->in_flight_ns : ns;
    walk->in_flight_ns -= beside;
    walk->now_ns += ns + (1 - walk->machine->hidden) * beside;
}

static double *group_end_of(struct walk *walk, const struct shoal_node *node)
{
    for (size_t i = 0; i < node->n_args; i++) {
        const struct graph_group *group = node->args[i].kind == SHOAL_ARG_GROUP
                                              ? graph_find_group(node->graph, node->args[i].as.string)
                                              : NULL;
        if (group) {
            return &walk->group_end_ns[group->number];
        }
    }
    return NULL;
}

static void start(struct walk *walk, const struct shoal_node *node, double ns)
{
    double *group_end = group_end_of(walk, node);
    walk->now_ns += walk->machine->start_ns;
    double begin = group_end && *group_end > walk->now_ns ? *group_end : walk->now_ns;
    walk->ends_ns[node->id] = begin + ns;
    walk->in_flight_ns += ns;
    if (group_end) {
        *group_end = begin + ns;
    }
}

/* Waits for all starts that the node's inputs are, also as elements of a list. */
static void wait(struct walk *walk, const struct shoal_node *node)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        const struct shoal_node *input = node->inputs[i];
        while (!node_is_start(input) && input->n_inputs > 0 && walk->ends_ns[input->id] == 0 &&
               node_flags(input) & SHOAL_OP_VIEW) {
            input = input->inputs[0];
        }
        double left = walk->ends_ns[input->id] - walk->now_ns;
        if (left > 0) {
            walk->now_ns += left;
            walk->in_flight_ns -= left < walk->in_flight_ns ? left : walk->in_flight_ns;
        }
    }
}

static shoal_status walk_graph(struct walk *walk, const struct shoal_graph *graph, struct estimate *estimate)
{
    double compute_ns = 0;
    double communication_ns = 0;
    for (const struct shoal_node *node = graph->first; node; node = node->next) {
        double ns = (double)estimate_node_ns(walk->machine, node);
        if (node_is_wait(node)) {
            wait(walk, node);
        } else if (node_is_start(node)) {
            communication_ns += ns;
            start(walk, node, ns);
        } else {
            compute_ns += ns;
            compute(walk, ns);
        }
    }
    estimate->compute_ns = whole_ns(compute_ns);
    estimate->communication_ns = whole_ns(communication_ns);
    estimate->exposed_ns = whole_ns(walk->now_ns > compute_ns ? walk->now_ns - compute_ns : 0);
    return SHOAL_OK;
}

shoal_status estimate_graph(const struct machine *machine, const struct shoal_graph *graph,
                            struct estimate *estimate_out)
{
    struct walk walk = {.machine = machine,
                        .ends_ns = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(double)),
                        .group_end_ns = mem_alloc_zeroed(graph->n_groups + 1, sizeof(double))};
    struct estimate estimate = {.peak_bytes = 0};
    shoal_status status =
        walk.ends_ns && walk.group_end_ns ? walk_graph(&walk, graph, &estimate) : SHOAL_ERR_NO_MEMORY;
    mem_free(walk.ends_ns);
    mem_free(walk.group_end_ns);
    TRY(status);
    TRY(memory_peak(graph, &estimate.peak_bytes));
    *estimate_out = estimate;
    return SHOAL_OK;
}
