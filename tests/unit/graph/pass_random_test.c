/* SPDX-License-Identifier: MIT */
/*
 * Random graphs and random passes: a graph computes the same bits afterwards, in its outputs and in its inputs' memory, however
 * results are copied, read again, overwritten and reduced once more.
 */
#include <stdio.h>

#include "evaluate.h"

enum {
    MAX_NODES = 200,
    MAX_BYTES = 1 << 20
};

struct maker {
    struct test_random random;
    shoal_graph *graph;
    shoal_node *tensors[MAX_NODES]; /* f32 of length 4, to take from */
    size_t n_tensors;
    shoal_node *waits[MAX_NODES]; /* nobody has used them yet */
    size_t n_waits;
    shoal_node *outputs[MAX_NODES];
    size_t n_outputs;
};

static shoal_node *pick(struct maker *maker)
{
    return maker->tensors[test_random_below(&maker->random, maker->n_tensors)];
}

static void keep(struct maker *maker, shoal_node *node)
{
    if (maker->n_tensors < MAX_NODES) {
        maker->tensors[maker->n_tensors++] = node;
    }
}

static void add_compute(struct maker *maker)
{
    static const char *const ops[] = {"add", "mul", "sub"};
    keep(maker, BUILD_CALL(maker->graph, ops[test_random_below(&maker->random, 3)], arg_node(pick(maker)),
                           arg_node(pick(maker))));
}

static void add_write(struct maker *maker)
{
    shoal_node *self = pick(maker);
    switch (test_random_below(&maker->random, 3)) {
    case 0:
        keep(maker, BUILD_CALL(maker->graph, "mul_scalar_", arg_node(self), arg_float(0.5)));
        break;
    case 1:
        keep(maker, BUILD_CALL(maker->graph, "add_", arg_node(self), arg_node(pick(maker))));
        break;
    default:
        keep(maker, BUILD_CALL(maker->graph, "view", arg_node(self), ARG_LIST(arg_int(4))));
    }
}

static void add_gradient(struct maker *maker)
{
    uint64_t kind = test_random_below(&maker->random, 8);
    struct ddp_chain chain = {.divisor = kind == 0 ? 4 : 8, .group = kind == 1 ? "other" : NULL};
    shoal_node *gradient = pick(maker);
    if (kind == 2) {
        chain = (struct ddp_chain){.reduce = "avg"};
    } else if (kind == 3) {
        chain.start = "all_reduce_";
    } else if (kind == 4) {
        gradient = BUILD_CALL(maker->graph, "neg", arg_node(gradient));
        chain = (struct ddp_chain){.start = "all_reduce_", .reduce = "avg"};
    } else if (kind == 5) {
        chain.divisor = 0;
    }
    if (kind == 6) { /* a quotient, or what is reduced in place, that others see and overwrite */
        gradient = BUILD_CALL(maker->graph, "div_scalar", arg_node(gradient), arg_float(8));
        keep(maker, gradient);
        if (test_random_below(&maker->random, 3) == 0) {
            add_write(maker);
        }
        bool is_in_place = test_random_below(&maker->random, 2) == 0;
        chain = (struct ddp_chain){.start = is_in_place ? "all_reduce_" : NULL};
    }
    shoal_node *wait = ddp_chain(maker->graph, gradient, chain);
    if (test_random_below(&maker->random, 6) == 0) {
        keep(maker, wait); /* perhaps used by compute */
    }
    maker->waits[maker->n_waits++] = wait;
}

static void add_copy(struct maker *maker)
{
    if (maker->n_waits == 0) {
        return;
    }
    shoal_node *wait = maker->waits[--maker->n_waits];
    shoal_node *copy = BUILD_CALL(maker->graph, "copy_", arg_node(pick(maker)), arg_node(wait));
    if (test_random_below(&maker->random, 3) > 0) {
        keep(maker, copy);
    } else {
        maker->outputs[maker->n_outputs++] = copy;
    }
}

static shoal_graph *make(uint64_t seed)
{
    struct maker maker = {.random = test_random_begin(seed), .graph = build_graph(8)};
    CHECK_OK(shoal_graph_add_group(maker.graph, "other", (int[]){0, 1, 2}, 1, 3));
    size_t n_inputs = 2 + test_random_below(&maker.random, 4);
    size_t n_steps = 4 + test_random_below(&maker.random, 36);
    uint64_t n_writes = test_random_below(&maker.random, 3);
    for (size_t i = 0; i < n_inputs; i++) {
        keep(&maker, build_input(maker.graph, "x", 4));
    }
    for (size_t i = 0; i < n_steps; i++) {
        uint64_t kind = test_random_below(&maker.random, 8 + n_writes);
        if (kind < 4) {
            add_gradient(&maker);
        } else if (kind < 6) {
            add_copy(&maker);
        } else if (kind < 8) {
            add_compute(&maker);
        } else {
            add_write(&maker);
        }
    }
    for (size_t i = 0; i < maker.n_waits; i++) {
        maker.outputs[maker.n_outputs++] = maker.waits[i];
    }
    for (size_t i = 0; i < 3; i++) {
        maker.outputs[maker.n_outputs++] = pick(&maker);
    }
    ddp_output(maker.graph, maker.outputs, maker.n_outputs);
    return maker.graph;
}

static void run_random_passes(shoal_graph *graph, uint64_t seed)
{
    static const char *const names[] = {CONCAT, COALESCED, SCHEDULE, DRIVER};
    static const double sizes[] = {25, -1, 0.00005};
    struct test_random random = test_random_begin(seed);
    size_t n_passes = 1 + test_random_below(&random, 3);
    for (size_t i = 0; i < n_passes && !test_has_failed(); i++) {
        shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
        const char *pass = names[test_random_below(&random, 4)];
        options.bucket_size_mb = sizes[test_random_below(&random, 3)];
        CHECK_OK(shoal_graph_run_passes(graph, &pass, 1, &options, NULL));
    }
}

TEST(random_graphs_compute_the_same)
{
    static char before[MAX_BYTES];
    static char after[MAX_BYTES];
    size_t n_fewer = 0;
    for (uint64_t round = 0; round < 3000 && !test_has_failed(); round++) {
        shoal_graph *graph = make(2 * round);
        size_t n_starts = ddp_count(graph, "all_reduce") + ddp_count(graph, "all_reduce_");
        size_t n_bytes = evaluate(graph, before, sizeof before);
        run_random_passes(graph, 2 * round + 1);
        if (test_has_failed()) { /* a graph in the wrong order can not be run */
            test_failed(__FILE__, __LINE__, "round %llu", (unsigned long long)round);
            shoal_graph_free(graph);
            return;
        }
        CHECK_INT(evaluate(graph, after, sizeof after), n_bytes);
        n_fewer += ddp_count(graph, "all_reduce") + ddp_count(graph, "all_reduce_") < n_starts ? 1 : 0;
        if (memcmp(before, after, n_bytes) != 0) {
            test_failed(__FILE__, __LINE__, "round %llu computes something else", (unsigned long long)round);
        }
        shoal_graph_free(graph);
    }
    CHECK(n_fewer > 300);
}
