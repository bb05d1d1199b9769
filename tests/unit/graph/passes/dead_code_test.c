/* SPDX-License-Identifier: MIT */
/* shoal_graph_remove_dead: what goes, and what has to stay. */
#include "fixtures/graph_build.h"
#include "graph/ir/graph.h"
#include "harness/test.h"
#include "shoal/graph.h"
#include "shoal/ops.h"

static size_t remove_dead(shoal_graph *graph)
{
    size_t n_erased = 77;
    CHECK_OK(shoal_graph_remove_dead(graph, &n_erased));
    return n_erased;
}

TEST(null_and_an_empty_graph)
{
    size_t n_erased = 77;
    CHECK_STATUS(shoal_graph_remove_dead(NULL, &n_erased), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("graph_remove_dead: graph is NULL");
    CHECK_INT(n_erased, 0);
    shoal_graph *graph = build_graph(0);
    CHECK_INT(remove_dead(graph), 0);
    CHECK_OK(shoal_graph_remove_dead(graph, NULL));
    shoal_graph_free(graph);
}

TEST(chains_vanish_in_one_sweep)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *kept = BUILD_CALL(graph, "neg", arg_node(x));
    shoal_node *dead = BUILD_CALL(graph, "add", arg_node(x), arg_node(kept));
    for (int i = 0; i < 5; i++) {
        dead = BUILD_CALL(graph, "mul", arg_node(dead), arg_node(kept));
    }
    REQUIRE(dead && build_output(graph, 1, kept));
    CHECK_INT(remove_dead(graph), 6);
    CHECK_NODES(graph, "x neg output");
    CHECK_INT(shoal_node_n_users(kept), 1);
    CHECK_INT(shoal_node_n_users(x), 1);
    CHECK_OK(shoal_graph_lint(graph));
    CHECK_INT(remove_dead(graph), 0);
    shoal_graph_free(graph);
}

/* A node that a living and a dead one use lives, and so do inputs of the graph that nobody uses. */
TEST(inputs_of_the_graph_stay)
{
    shoal_graph *graph = build_graph(0);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *y = build_input(graph, "y", 4);
    REQUIRE(y && BUILD_CALL(graph, "neg", arg_node(y)) && build_output(graph, 1, x));
    CHECK_INT(remove_dead(graph), 1);
    CHECK_NODES(graph, "x y output");
    CHECK_OK(shoal_graph_lint(graph));
    shoal_graph_free(graph);
}

TEST(waits_stay_and_so_does_what_they_wait_for)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *last = build_chain(graph, x, 2);
    REQUIRE(last && build_output(graph, 1, x));
    CHECK_INT(remove_dead(graph), 1);
    CHECK_NODES(graph, "x all_reduce wait_tensor mul_scalar all_reduce_1 wait_tensor_1 output");
    CHECK_OK(shoal_graph_lint(graph));
    shoal_graph_free(graph);
}

TEST(a_start_without_users_goes)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *inputs[2] = {x, BUILD_CALL(graph, "neg", arg_node(x))};
    shoal_node *list = build_all_reduce_coalesced(graph, inputs, 2);
    shoal_node *element = build_getitem(graph, list, 1);
    REQUIRE(element && build_all_reduce(graph, x) && build_output(graph, 1, x));
    CHECK_INT(remove_dead(graph), 4);
    CHECK_NODES(graph, "x output");
    CHECK_OK(shoal_graph_lint(graph));
    shoal_graph_free(graph);
}

TEST(what_writes_in_place_stays)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *two = BUILD_CALL(graph, "neg", arg_node(x));
    REQUIRE(BUILD_CALL(graph, "add_", arg_node(x), arg_node(two)));
    REQUIRE(BUILD_CALL(graph, "copy_", arg_node(x), arg_node(two)));
    REQUIRE(BUILD_CALL(graph, "all_reduce_", arg_node(x), arg_string("sum"), arg_group(BUILD_GROUP)));
    REQUIRE(BUILD_CALL(graph, "isend", arg_node(x), arg_int(0), arg_int(0), arg_group(BUILD_GROUP)));
    REQUIRE(BUILD_CALL(graph, "neg", arg_node(x)) && build_output(graph, 1, x));
    CHECK_INT(remove_dead(graph), 1);
    CHECK_NODES(graph, "x neg add_ copy_ all_reduce_ isend output");
    shoal_graph_free(graph);
}

TEST(opaque_calls_and_constants_go)
{
    shoal_graph *graph = build_graph(0);
    shoal_node *x = build_input(graph, "x", 4);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_zeros((int64_t[]){4}, 1, SHOAL_F32);
    shoal_node *constant = NULL;
    CHECK_OK(shoal_graph_constant(graph, "c", tensor, &constant));
    REQUIRE_OK(shoal_scope_end());
    shoal_node *call = build_opaque(graph, "call", (shoal_node *[]){x, constant}, 2);
    REQUIRE(call && build_output(graph, 1, x));
    CHECK_OK(shoal_graph_lint(graph));
    CHECK_INT(remove_dead(graph), 2);
    CHECK_NODES(graph, "x output");
    shoal_graph_free(graph);
}

/* Without an output nothing is used: only lint asks for one. */
TEST(a_graph_without_an_output)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    REQUIRE(BUILD_CALL(graph, "neg", arg_node(x)));
    CHECK_INT(remove_dead(graph), 1);
    CHECK_NODES(graph, "x");
    shoal_graph_free(graph);
}

TEST(a_graph_that_is_not_in_order_is_refused)
{
    shoal_graph *graph = build_graph(0);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *a = BUILD_CALL(graph, "neg", arg_node(x));
    shoal_node *b = BUILD_CALL(graph, "neg", arg_node(a));
    REQUIRE(b && build_output(graph, 1, x));
    REQUIRE_OK(shoal_node_move_before(b, a));
    size_t n_erased = 77;
    CHECK_STATUS(shoal_graph_remove_dead(graph, &n_erased), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("graph_remove_dead: node neg_1: input 0: node neg is not before it");
    CHECK_INT(n_erased, 0);
    CHECK_NODES(graph, "x neg_1 neg output");
    REQUIRE_OK(shoal_graph_sort(graph));
    a->graph = NULL;
    CHECK_STATUS(shoal_graph_remove_dead(graph, NULL), SHOAL_ERR_STATE);
    a->graph = graph;
    shoal_node *erased = build_opaque(graph, "erased", &x, 1);
    REQUIRE(erased);
    REQUIRE_OK(shoal_node_erase(erased));
    b->inputs[0] = erased;
    CHECK_STATUS(shoal_graph_remove_dead(graph, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("graph_remove_dead: node neg_1: input 0: node erased is not in the graph");
    b->inputs[0] = a;
    CHECK_INT(remove_dead(graph), 2);
    shoal_graph_free(graph);
}

/* The insertion point goes along when its node goes. */
TEST(the_insertion_point_at_a_dead_node)
{
    shoal_graph *graph = build_graph(0);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *a = BUILD_CALL(graph, "neg", arg_node(x));
    shoal_node *b = BUILD_CALL(graph, "neg", arg_node(a));
    REQUIRE(b && build_output(graph, 1, x));
    REQUIRE_OK(shoal_graph_set_insert_point(graph, (shoal_insert_point){b, true}));
    CHECK_INT(remove_dead(graph), 2);
    CHECK(build_input(graph, "y", 4) != NULL);
    CHECK_NODES(graph, "x y output");
    CHECK_OK(shoal_graph_lint(graph));
    shoal_graph_free(graph);
}

TEST(a_large_graph)
{
    enum {
        N_NODES = 100000
    };
    shoal_graph *graph = build_graph(0);
    shoal_node *x = build_input(graph, "x", 1);
    shoal_node *node = x;
    for (size_t i = 0; i < N_NODES && node; i++) {
        node = build_opaque(graph, "node", (shoal_node *[]){node, x}, 2);
    }
    REQUIRE(node && build_output(graph, 1, x));
    CHECK_INT(remove_dead(graph), N_NODES);
    CHECK_NODES(graph, "x output");
    CHECK_OK(shoal_graph_lint(graph));
    shoal_graph_free(graph);
}

/* Memory that runs out ---------------------------------------------------------------------------------- */

static shoal_status remove_from(shoal_graph *graph)
{
    int64_t count = 4;
    shoal_node *x = NULL;
    shoal_node *node = NULL;
    const shoal_op *neg = NULL;
    shoal_status status = shoal_op_find("neg", &neg);
    if (status == SHOAL_OK) {
        status = shoal_graph_placeholder(graph, "x", &count, 1, SHOAL_F32, &x);
    }
    for (int i = 0; i < 4 && status == SHOAL_OK; i++) {
        shoal_arg arg = arg_node(i == 0 ? x : node);
        status = shoal_graph_call(graph, neg, &arg, 1, NULL, &node);
    }
    size_t n_before = shoal_graph_n_nodes(graph);
    if (status == SHOAL_OK) {
        status = shoal_graph_remove_dead(graph, NULL);
        CHECK_INT(shoal_graph_n_nodes(graph), status == SHOAL_OK ? 1 : n_before);
    }
    return status;
}

static shoal_status build_and_remove(void *context)
{
    shoal_graph *graph = NULL;
    shoal_status status = shoal_graph_create(&graph);
    if (status == SHOAL_OK) {
        status = remove_from(graph);
    }
    shoal_graph_free(graph);
    return status;
}

TEST(removing_survives_failing_allocations)
{
    CHECK(test_sweep_allocations(build_and_remove, NULL) > 3);
}
