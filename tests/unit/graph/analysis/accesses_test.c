/* SPDX-License-Identifier: MIT */
/* When memory demands an order that inputs do not: then accesses are listed, otherwise not. */
#include "graph/analysis/accesses.h"

#include "unit/graph/passes/ddp_graph.h"

static bool has_list(const shoal_graph *graph)
{
    struct accesses accesses = {.effects = NULL};
    if (!CHECK_OK(accesses_find(graph, &accesses))) {
        return false;
    }
    bool is_listed = accesses.effects != NULL;
    uint32_t position = 0;
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        CHECK_INT(accesses_position(&accesses, node), ++position);
    }
    accesses_free(&accesses);
    return is_listed;
}

TEST(starts_with_a_wait_of_their_own_demand_nothing)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *wait = ddp_average(graph, 4);
    shoal_node *view = BUILD_CALL(graph, "view", arg_node(wait), ARG_LIST(arg_int(2), arg_int(2)));
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *list = build_all_reduce_coalesced(graph, (shoal_node *[]){x, x}, 2);
    build_output(graph, 3, view, build_wait(graph, build_getitem(graph, list, 0)),
                 build_wait(graph, build_getitem(graph, list, 1)));
    CHECK(!has_list(graph));
    shoal_graph_free(graph);
}

TEST(writes_in_place)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *copy = BUILD_CALL(graph, "copy_", arg_node(x), arg_node(ddp_average(graph, 4)));
    build_output(graph, 1, copy);
    CHECK(has_list(graph));
    shoal_graph_free(graph);
}

/* The view is read behind the wait, which is none of its inputs. */
TEST(views_of_what_is_in_flight)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *start = build_all_reduce(graph, build_input(graph, "x", 4));
    shoal_node *view = BUILD_CALL(graph, "view", arg_node(start), ARG_LIST(arg_int(2), arg_int(2)));
    shoal_node *wait = build_wait(graph, start);
    build_output(graph, 2, BUILD_CALL(graph, "neg", arg_node(view)), wait);
    CHECK(has_list(graph));
    shoal_graph_free(graph);
}

TEST(two_waits_for_one_start)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *start = build_all_reduce(graph, build_input(graph, "x", 4));
    shoal_node *first = build_wait(graph, start);
    build_output(graph, 2, first, build_wait(graph, start));
    CHECK(has_list(graph));
    shoal_graph_free(graph);
}

TEST(waits_for_something_else)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *wait = build_wait(graph, x);
    build_output(graph, 2, BUILD_CALL(graph, "neg", arg_node(x)), wait);
    CHECK(has_list(graph));
    shoal_graph_free(graph);
}
