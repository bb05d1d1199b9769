/* SPDX-License-Identifier: MIT */
#include "unit/graph/evaluate.h"

TEST(d29_block_goes_before_its_first_user)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    shoal_node *wait = build_wait(graph, build_all_reduce(graph, x));
    shoal_node *split = BUILD_CALL(graph, "split", arg_node(wait), arg_int(3));
    shoal_node *item = build_getitem(graph, split, 1);
    shoal_node *shaped = BUILD_CALL(graph, "reshape", arg_node(item), ARG_LIST(arg_int(3), arg_int(1)));
    shoal_node *other = BUILD_CALL(graph, "neg", arg_node(x));
    shoal_node *user = BUILD_CALL(graph, "mul", arg_node(shaped), arg_node(shaped));
    build_output(graph, 2, other, user);
    CHECK_INT(ddp_run(graph, SCHEDULE, 0), 0);
    CHECK_NODES(graph, "x all_reduce neg wait_tensor split getitem reshape mul output");
    shoal_graph_free(graph);
}

TEST(waits_of_outputs_go_to_the_end_in_order)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *a = ddp_average(graph, 3);
    shoal_node *b = ddp_average(graph, 4);
    build_output(graph, 2, b, a);
    ddp_run(graph, SCHEDULE, 0);
    CHECK_NODES(
        graph,
        "p neg div_scalar all_reduce p_1 neg_1 div_scalar_1 all_reduce_1 wait_tensor wait_tensor_1 output");
    shoal_graph_free(graph);
}

TEST(d30_wait_without_users)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    build_wait(graph, build_all_reduce(graph, x));
    build_output(graph, 1, x);
    const char *pass = SCHEDULE;
    CHECK_STATUS(shoal_graph_run_passes(graph, &pass, 1, NULL, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("all_reduce %all_reduce has a wait without users");
    shoal_graph_free(graph);
}

/* Views that nobody uses are users: nothing moves, since nobody needs it. */
TEST(dead_views)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    shoal_node *wait = build_wait(graph, build_all_reduce(graph, x));
    BUILD_CALL(graph, "reshape", arg_node(wait), ARG_LIST(arg_int(2), arg_int(3)));
    shoal_node *neg = BUILD_CALL(graph, "neg", arg_node(x));
    build_output(graph, 1, neg);
    ddp_run(graph, SCHEDULE, 0);
    CHECK_NODES(graph, "x all_reduce wait_tensor reshape neg output");
    shoal_graph_free(graph);
}

/* A result that only dead code used: the driver comes behind its removal, and takes the wait as it stands. */
TEST(results_for_dead_code)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    shoal_node *wait = build_wait(graph, build_all_reduce(graph, x));
    BUILD_CALL(graph, "neg", arg_node(wait));
    shoal_node *a = ddp_average(graph, 3);
    build_output(graph, 1, a);
    CHECK_OK(shoal_graph_remove_dead(graph, NULL));
    ddp_run(graph, "fuse_ddp_communication", 0);
    CHECK_NODES(graph, "x all_reduce wait_tensor p neg_1 div_scalar all_reduce_1 wait_tensor_1 output");
    shoal_graph_free(graph);
}

TEST(coalesced_waits)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    shoal_node *y = build_input(graph, "y", 2);
    shoal_node *start = build_all_reduce_coalesced(graph, (shoal_node *[]){x, y}, 2);
    shoal_node *first = build_wait(graph, build_getitem(graph, start, 0));
    shoal_node *second = build_wait(graph, build_getitem(graph, start, 1));
    shoal_node *other = BUILD_CALL(graph, "neg", arg_node(x));
    build_output(graph, 3, first, second, other);
    ddp_run(graph, SCHEDULE, 0);
    CHECK_NODES(graph, "x y all_reduce_coalesced getitem neg wait_tensor getitem_1 wait_tensor_1 output");
    shoal_graph_free(graph);
}

/* Who overwrites what is being reduced comes after the wait, and so does who touches what is reduced in place. */
TEST(memory_keeps_waits_back)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    shoal_node *y = build_input(graph, "y", 6);
    shoal_node *first = build_wait(graph, build_all_reduce(graph, x));
    BUILD_CALL(graph, "neg", arg_node(x)); /* reading is no harm */
    shoal_node *write = BUILD_CALL(graph, "mul_scalar_", arg_node(x), arg_float(2));
    shoal_node *start =
        BUILD_CALL(graph, "all_reduce_", arg_node(y), arg_string("sum"), arg_group(BUILD_GROUP));
    shoal_node *second = build_wait(graph, start);
    shoal_node *other = BUILD_CALL(graph, "neg", arg_node(x));
    shoal_node *read = BUILD_CALL(graph, "neg", arg_node(y));
    build_output(graph, 5, first, second, write, other, read);
    ddp_run(graph, SCHEDULE, 0);
    CHECK_NODES(graph,
                "x y all_reduce neg wait_tensor mul_scalar_ all_reduce_ neg_1 wait_tensor_1 neg_2 output");
    shoal_graph_free(graph);
}

/* A reduction in place whose wait nobody uses: whoever reads the memory, or nobody. */
TEST(waits_of_memory)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    shoal_node *y = build_input(graph, "y", 6);
    build_wait(graph,
               BUILD_CALL(graph, "all_reduce_", arg_node(x), arg_string("sum"), arg_group(BUILD_GROUP)));
    build_wait(graph,
               BUILD_CALL(graph, "all_reduce_", arg_node(y), arg_string("sum"), arg_group(BUILD_GROUP)));
    shoal_node *other = build_input(graph, "z", 6);
    shoal_node *read = BUILD_CALL(graph, "neg", arg_node(x));
    build_output(graph, 2, other, read);
    ddp_run(graph, SCHEDULE, 0);
    CHECK_NODES(graph, "x y all_reduce_ all_reduce__1 wait_tensor_1 z wait_tensor neg output");
    shoal_graph_free(graph);
}

/* What looks at a result behind the first user stays there. */
TEST(later_views_stay)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    shoal_node *wait = build_wait(graph, build_all_reduce(graph, x));
    shoal_node *write = BUILD_CALL(graph, "mul_scalar_", arg_node(wait), arg_float(2));
    shoal_node *shaped = BUILD_CALL(graph, "reshape", arg_node(wait), ARG_LIST(arg_int(2), arg_int(3)));
    build_output(graph, 2, write, shaped);
    ddp_run(graph, SCHEDULE, 0);
    CHECK_NODES(graph, "x all_reduce wait_tensor mul_scalar_ reshape output");
    shoal_graph_free(graph);
}
