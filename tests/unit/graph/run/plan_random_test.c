/* SPDX-License-Identifier: MIT */
/* Random graphs as plans: in run after run the bits of shoal_graph_run, however the plan is made. */
#include "unit/graph/planning.h"

#include "fixtures/random_graph.h"
#include "graph/ir/graph.h"

#define GRAPHS_OF_MODE 100

static size_t count_outputs(const shoal_arg *arg)
{
    if (arg->kind == SHOAL_ARG_NODE) {
        return arg->as.node->n_values;
    }
    size_t n = arg->kind == SHOAL_ARG_LIST ? 0 : 1;
    for (size_t i = 0; arg->kind == SHOAL_ARG_LIST && i < arg->as.list.count; i++) {
        n += count_outputs(&arg->as.list.items[i]);
    }
    return n;
}

static void try_graph(shoal_world *world, uint64_t number)
{
    int n_ranks = shoal_world_n_ranks(world);
    /* Each has its own constants, which it may write. */
    shoal_graph *graph = random_graph(number, n_ranks);
    shoal_graph *planned = random_graph(number, n_ranks);
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    options.one_shot = number % 2 == 1;
    options.no_reuse = number % 5 == 1;
    options.no_comm_buffers = number % 7 == 1;
    size_t n_outputs = count_outputs(&graph->output->args[0]);
    if (n_outputs <= RUN_MAX) {
        plan_rounds(world, graph, planned, &options, n_outputs, 3);
    }
    shoal_graph_free(graph);
    shoal_graph_free(planned);
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "that was graph %llu", (unsigned long long)number);
    }
}

static void try_graphs(struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    uint64_t n_graphs = (uint64_t)(3 * GRAPHS_OF_MODE / test_time_scale());
    for (uint64_t number = 1; number <= n_graphs && !test_has_failed(); number++) {
        try_graph(world, number);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(random_graphs_of_2, 2)
{
    try_graphs(self);
}

TEST_RANKS(random_graphs_of_3, 3)
{
    try_graphs(self);
}
