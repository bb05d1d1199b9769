/* SPDX-License-Identifier: MIT */
#include "ddp_graph.h"

static void run(shoal_graph *graph)
{
    const char *pass = "dedupe_waits";
    CHECK_OK(shoal_graph_run_passes(graph, &pass, 1, NULL, NULL));
}

TEST(u29_duplicate_and_chained_waits)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *start = build_all_reduce(graph, x);
    shoal_node *first = build_wait(graph, start);
    shoal_node *second = build_wait(graph, start);
    shoal_node *third = build_wait(graph, build_wait(graph, second));
    shoal_node *sum = BUILD_CALL(graph, "add", arg_node(second), arg_node(third));
    shoal_node *output = build_output(graph, 3, sum, first, third);
    run(graph);
    CHECK_NODES(graph, "x all_reduce wait_tensor add output");
    CHECK(shoal_node_args(sum, NULL)[1].as.node == first);
    CHECK_INT(shoal_node_n_users(first), 2);
    (void)output;
    shoal_graph_free(graph);
}

/* It waits for the second start, which goes on in the same memory. */
TEST(waits_for_later_starts_stay)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *first = build_wait(graph, build_all_reduce(graph, x));
    shoal_node *again =
        BUILD_CALL(graph, "all_reduce_", arg_node(first), arg_string("sum"), arg_group(BUILD_GROUP));
    shoal_node *second = build_wait(graph, first);
    shoal_node *read = BUILD_CALL(graph, "neg", arg_node(second));
    shoal_node *third = build_wait(graph, again);
    shoal_node *fourth = build_wait(graph, first);
    build_output(graph, 3, read, third, fourth);
    run(graph);
    CHECK_NODES(graph, "x all_reduce wait_tensor all_reduce_ wait_tensor_1 neg wait_tensor_2 output");
    shoal_graph_free(graph);
}

/* What starts on no elements is waited for, and touches nothing of the memory around it. */
TEST(empty_starts_touch_nothing)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *wait = build_wait(graph, build_all_reduce(graph, x));
    shoal_node *none = BUILD_CALL(graph, "narrow", arg_node(wait), arg_int(0), arg_int(0), arg_int(0));
    shoal_node *of_none = build_wait(
        graph, BUILD_CALL(graph, "all_reduce_", arg_node(none), arg_string("sum"), arg_group(BUILD_GROUP)));
    shoal_node *computed = BUILD_CALL(graph, "neg", arg_node(none));
    shoal_node *of_computed = build_wait(graph, BUILD_CALL(graph, "all_reduce_", arg_node(computed),
                                                           arg_string("sum"), arg_group(BUILD_GROUP)));
    shoal_node *again = build_wait(graph, wait);
    build_output(graph, 3, of_none, of_computed, again);
    run(graph);
    CHECK_NODES(
        graph,
        "x all_reduce wait_tensor narrow all_reduce_ wait_tensor_1 neg all_reduce__1 wait_tensor_2 output");
    shoal_graph_free(graph);
}

TEST(views_of_results_need_no_wait)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *start = build_all_reduce(graph, x);
    shoal_node *wait = build_wait(graph, start);
    shoal_node *view = BUILD_CALL(graph, "view", arg_node(wait), ARG_LIST(arg_int(2), arg_int(2)));
    shoal_node *other = BUILD_CALL(graph, "view", arg_node(start), ARG_LIST(arg_int(2), arg_int(2)));
    shoal_node *again = build_wait(graph, view);
    shoal_node *of_other = build_wait(graph, other);
    build_output(graph, 2, again, of_other);
    run(graph);
    CHECK_NODES(graph, "x all_reduce wait_tensor view view_1 wait_tensor_2 output");
    shoal_graph_free(graph);
}

/* What bucketing leaves: waits for views of a bucket, and for copies of them. A wait for an input may wait for its giver. */
TEST(results_that_are_no_starts)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *whole = build_wait(graph, build_all_reduce(graph, x));
    shoal_node *shaped = BUILD_CALL(graph, "reshape", arg_node(whole), ARG_LIST(arg_int(2), arg_int(2)));
    shoal_node *turned = BUILD_CALL(graph, "transpose", arg_node(shaped), arg_int(0), arg_int(1));
    shoal_node *copy = BUILD_CALL(graph, "contiguous", arg_node(turned));
    shoal_node *first = build_wait(graph, shaped); /* one after the other: arguments have no order */
    shoal_node *second = build_wait(graph, copy);
    build_output(graph, 3, first, second, build_wait(graph, x));
    run(graph);
    CHECK_NODES(graph, "x all_reduce wait_tensor reshape transpose contiguous wait_tensor_3 output");
    shoal_graph_free(graph);
}

TEST(lists)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *y = build_input(graph, "y", 2);
    shoal_node *start = build_all_reduce_coalesced(graph, (shoal_node *[]){x, y}, 2);
    shoal_node *first = BUILD_CALL(graph, "wait_tensors", arg_node(start));
    shoal_node *second = BUILD_CALL(graph, "wait_tensors", arg_node(start));
    shoal_node *item = build_wait(graph, build_getitem(graph, second, 1));
    build_output(graph, 2, build_getitem(graph, first, 0), item);
    run(graph);
    CHECK_NODES(graph, "x y all_reduce_coalesced wait_tensors getitem getitem_1 output");
    shoal_graph_free(graph);
}

TEST(elements_are_waited_for_apart)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *start = build_all_reduce_coalesced(graph, (shoal_node *[]){x, x}, 2);
    shoal_node *item = build_getitem(graph, start, 0);
    shoal_node *first = build_wait(graph, item);
    shoal_node *again = build_wait(graph, item);
    shoal_node *second = build_wait(graph, build_getitem(graph, start, 1));
    build_output(graph, 3, first, second, again);
    run(graph);
    CHECK_NODES(graph, "x all_reduce_coalesced getitem wait_tensor getitem_1 wait_tensor_2 output");
    shoal_graph_free(graph);
}

/* All duplicates are arguments of one node. */
TEST(many_duplicates_in_one_list)
{
    const size_t n_waits = (size_t)(100000 / test_time_scale());
    shoal_graph *graph = build_graph(2);
    shoal_node *start = build_all_reduce(graph, build_input(graph, "x", 4));
    shoal_node **waits = calloc(n_waits, sizeof *waits);
    REQUIRE(waits);
    for (size_t i = 0; i < n_waits; i++) {
        waits[i] =
            build_wait(graph, i % 2 == 0 ? start : waits[i - 1]); /* of the start, and of a wait in turn */
    }
    ddp_output(graph, waits, n_waits);
    run(graph);
    CHECK_NODES(graph, "x all_reduce wait_tensor output");
    CHECK_INT(shoal_node_n_users(waits[0]), 1);
    CHECK_INT(shoal_node_args(shoal_graph_last(graph), NULL)[0].as.list.count, n_waits);
    free(waits);
    shoal_graph_free(graph);
}

/* What was replaced is told of what stays. */
TEST(views_of_duplicates)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *start = build_all_reduce(graph, build_input(graph, "x", 4));
    shoal_node *first = build_wait(graph, start);
    shoal_node *view =
        BUILD_CALL(graph, "view", arg_node(build_wait(graph, start)), ARG_LIST(arg_int(2), arg_int(2)));
    build_output(graph, 2, build_wait(graph, view), first);
    run(graph);
    CHECK_NODES(graph, "x all_reduce wait_tensor view output");
    CHECK(shoal_node_args(view, NULL)[0].as.node == first);
    shoal_graph_free(graph);
}
