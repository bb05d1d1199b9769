/* SPDX-License-Identifier: MIT */
/*
 * Random graphs, as they are and after passes: a plan gives the bits of shoal_graph_run, in outputs and in inputs' memory, with
 * every option, in run after run.
 */
#include "fixtures/random_graph.h"
#include "unit/graph/running.h"

static size_t count_outputs(const shoal_arg *arg)
{
    size_t count = 0;
    if (arg->kind != SHOAL_ARG_LIST) {
        return arg->kind == SHOAL_ARG_NODE ? arg->as.node->n_values : 1;
    }
    for (size_t i = 0; i < arg->as.list.count; i++) {
        count += count_outputs(&arg->as.list.items[i]);
    }
    return count;
}

/* Some of the passes that make what lowering knows: buckets, rows, lists. The same on all ranks. */
static void run_some_passes(shoal_graph *graph, uint64_t number)
{
    static const char *const passes[] = {"bucket_all_gathers", "bucket_reduce_scatters",
                                         "bucket_all_reduces", "fuse_ddp_with_coalesced_op",
                                         "simple_overlap",     "raise_comms"};
    const size_t n_passes = sizeof passes / sizeof passes[0];
    for (size_t i = 0; i < n_passes; i++) {
        if ((number >> i & 1) != 0) {
            CHECK_OK(shoal_graph_run_passes(graph, &passes[i], 1, NULL, NULL));
        }
    }
}

/* Twice the same graph: each has constants of its own, which it may write. */
static shoal_graph *make_graph(uint64_t number, int n_ranks)
{
    shoal_graph *graph = random_graph(number, n_ranks);
    if (number % 2 == 1) {
        run_some_passes(graph, number / 2);
    }
    return graph;
}

static void compare_round(const shoal_graph *graph, shoal_plan *plan, shoal_world *world, int round,
                          size_t n_outputs)
{
    shoal_tensor *inputs[RUN_MAX] = {NULL};
    shoal_tensor *others[RUN_MAX] = {NULL};
    shoal_tensor *outputs[RUN_MAX] = {NULL};
    shoal_tensor *expected[RUN_MAX] = {NULL};
    size_t n_inputs = run_inputs(graph, shoal_world_rank(world) + 7 * round, inputs);
    (void)run_inputs(graph, shoal_world_rank(world) + 7 * round, others);
    bool has_run = CHECK_OK(shoal_graph_run(graph, world, others, n_inputs, expected, n_outputs));
    bool has_planned = CHECK_OK(shoal_plan_run(plan, inputs, n_inputs, outputs, n_outputs));
    for (size_t i = 0; i < n_outputs && has_run && has_planned; i++) {
        run_check_same("output", i, outputs[i], expected[i]);
    }
    for (size_t i = 0; i < n_inputs && has_run && has_planned; i++) {
        run_check_same("input", i, inputs[i], others[i]);
    }
    run_unref(expected, has_run ? n_outputs : 0);
    run_unref(outputs, has_planned ? n_outputs : 0);
    run_unref(inputs, n_inputs);
    run_unref(others, n_inputs);
}

static void compare(shoal_world *world, uint64_t number)
{
    int n_ranks = shoal_world_n_ranks(world);
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    shoal_graph *graph = make_graph(number, n_ranks);
    shoal_graph *planned = make_graph(number, n_ranks);
    shoal_plan *plan = NULL;
    options.one_shot = number % 3 == 0;
    options.no_reuse = number % 5 == 0;
    options.no_comm_buffers = number % 7 == 0;
    if (CHECK_OK(shoal_plan_create(planned, world, &options, &plan))) {
        for (int round = 0; round < 2 && !test_has_failed(); round++) {
            compare_round(graph, plan, world, round, count_outputs(&graph->output->args[0]));
        }
        shoal_plan_free(plan);
    }
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "that was graph %llu of %d ranks", (unsigned long long)number,
                    n_ranks);
    }
    shoal_graph_free(graph);
    shoal_graph_free(planned);
}

static void compare_many(struct rank *self, uint64_t first)
{
    uint64_t n_graphs = (uint64_t)(120 / test_time_scale()) + 4;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (uint64_t i = 0; i < n_graphs && !test_has_failed(); i++) {
        compare(world, first + i);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(plans_of_random_graphs_on_2, 2)
{
    compare_many(self, 1000);
}

TEST_RANKS(plans_of_random_graphs_on_3, 3)
{
    compare_many(self, 5000);
}
