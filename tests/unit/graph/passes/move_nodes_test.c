/* SPDX-License-Identifier: MIT */
/* Nodes that are moved together: they keep the order of the array, and a move that would change what is computed is refused. */
#include "ddp_graph.h"

static shoal_insert_point before(shoal_node *node)
{
    return (shoal_insert_point){.node = node, .is_after = false};
}

static shoal_insert_point after(shoal_node *node)
{
    return (shoal_insert_point){.node = node, .is_after = true};
}

static void check_refused(shoal_graph *graph, shoal_node *node, shoal_insert_point where, const char *words)
{
    shoal_node *first = shoal_graph_first(graph);
    shoal_node *next = shoal_node_next(node);
    CHECK_STATUS(shoal_graph_move_nodes(graph, &node, 1, where), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(words);
    CHECK(shoal_graph_first(graph) == first && shoal_node_next(node) == next);
}

/* PyTorch's helper reverses a block that it moves before a node. */
TEST(a_block_keeps_its_inner_order)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *start = build_all_reduce(graph, x);
    shoal_node *wait = build_wait(graph, start);
    shoal_node *split = BUILD_CALL(graph, "split", arg_node(wait), arg_int(2));
    shoal_node *item = build_getitem(graph, split, 0);
    shoal_node *neg = BUILD_CALL(graph, "neg", arg_node(x));
    shoal_node *mul = BUILD_CALL(graph, "mul_scalar", arg_node(neg), arg_float(2));
    build_output(graph, 2, item, mul);
    shoal_comm_block block = SHOAL_COMM_BLOCK_INIT;
    REQUIRE_OK(shoal_comm_block_get(start, &block));
    REQUIRE_OK(shoal_graph_move_nodes(graph, block.nodes + 1, block.n_nodes - 1, before(mul)));
    CHECK_NODES(graph, "x all_reduce neg wait_tensor split getitem mul_scalar output");
    REQUIRE_OK(shoal_graph_move_nodes(graph, block.nodes + 1, block.n_nodes - 1, after(mul)));
    CHECK_NODES(graph, "x all_reduce neg mul_scalar wait_tensor split getitem output");
    REQUIRE_OK(shoal_graph_move_nodes(graph, block.nodes, block.n_nodes, after(neg)));
    CHECK_NODES(graph, "x neg all_reduce wait_tensor split getitem mul_scalar output");
    REQUIRE_OK(shoal_graph_move_nodes(graph, block.nodes, block.n_nodes, after(neg)));
    CHECK_NODES(graph, "x neg all_reduce wait_tensor split getitem mul_scalar output");
    CHECK_OK(shoal_graph_lint(graph));

    /* From several places to one. */
    shoal_node *both[] = {start, neg};
    REQUIRE_OK(shoal_graph_move_nodes(graph, both, 2, before(wait)));
    CHECK_NODES(graph, "x all_reduce neg wait_tensor split getitem mul_scalar output");
    REQUIRE_OK(shoal_graph_move_nodes(graph, NULL, 0, before(wait)));
    shoal_comm_block_free(&block);
    shoal_graph_free(graph);
}

TEST(inputs_and_users)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *a = build_named(graph, "a", "neg", (shoal_arg[]){arg_node(x)}, 1);
    shoal_node *b = build_named(graph, "b", "neg", (shoal_arg[]){arg_node(a)}, 1);
    shoal_node *c = build_named(graph, "c", "neg", (shoal_arg[]){arg_node(b)}, 1);
    build_output(graph, 1, c);
    shoal_node *output = shoal_graph_last(graph);
    check_refused(graph, b, before(a), "graph_move_nodes: node a has to stay before node b");
    check_refused(graph, b, after(c), "node b has to stay before node c");
    check_refused(graph, a, before(x), "node x has to stay before node a");
    check_refused(graph, a, before(NULL), "node x has to stay before node a");
    check_refused(graph, c, after(NULL), "node c has to stay before node output");
    check_refused(graph, c, after(output), "node c has to stay before node output");
    CHECK_OK(shoal_graph_move_nodes(graph, &b, 1, before(c)));
    shoal_node *turned[] = {b, a};
    CHECK_STATUS(shoal_graph_move_nodes(graph, turned, 2, after(x)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node a has to stay before node b");
    CHECK_NODES(graph, "x a b c output");
    shoal_graph_free(graph);
}

TEST(memory_and_communication)
{
    shoal_graph *graph = build_graph(2);
    CHECK_OK(shoal_graph_add_group(graph, "other", (int[]){0, 1}, 1, 2));
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *read = build_named(graph, "read", "neg", (shoal_arg[]){arg_node(x)}, 1);
    shoal_node *write =
        build_named(graph, "write", "mul_scalar_", (shoal_arg[]){arg_node(x), arg_float(2)}, 2);
    shoal_node *first = build_all_reduce(graph, read);
    shoal_node *second =
        BUILD_CALL(graph, "all_reduce", arg_node(write), arg_string("sum"), arg_group("other"));
    shoal_node *wait = build_wait(graph, first);
    shoal_node *last = build_wait(graph, second);
    shoal_node *again =
        build_named(graph, "again", "mul_scalar_", (shoal_arg[]){arg_node(x), arg_float(2)}, 2);
    build_output(graph, 2, wait, last);
    check_refused(graph, write, before(read), "node read has to stay before node write");
    check_refused(graph, second, before(first), "node all_reduce has to stay before node all_reduce_1");
    check_refused(graph, again, before(last), "node wait_tensor_1 has to stay before node again");
    /* Waits may change places. */
    CHECK_OK(shoal_graph_move_nodes(graph, &last, 1, before(wait)));
    CHECK_NODES(graph, "x read write all_reduce all_reduce_1 wait_tensor_1 wait_tensor again output");
    CHECK_OK(shoal_graph_lint(graph));
    shoal_graph_free(graph);
}

TEST(arguments)
{
    shoal_graph *graph = build_graph(2);
    shoal_graph *other = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *a = build_named(graph, "a", "neg", (shoal_arg[]){arg_node(x)}, 1);
    shoal_node *b = build_named(graph, "b", "neg", (shoal_arg[]){arg_node(x)}, 1);
    shoal_node *gone = build_named(graph, "gone", "neg", (shoal_arg[]){arg_node(x)}, 1);
    build_output(graph, 2, a, b);
    shoal_node *foreign = build_input(other, "foreign", 4);
    shoal_node *nodes[] = {a, a};
    CHECK_STATUS(shoal_graph_move_nodes(NULL, nodes, 1, before(b)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("graph is NULL");
    CHECK_STATUS(shoal_graph_move_nodes(graph, NULL, 1, before(b)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nodes is NULL");
    CHECK_STATUS(shoal_graph_move_nodes(graph, nodes, 2, before(b)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node a is given twice");
    nodes[1] = NULL;
    CHECK_STATUS(shoal_graph_move_nodes(graph, nodes, 2, before(b)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node 1 is NULL");
    check_refused(graph, x, before(b), "node x is an input, which cannot be moved");
    check_refused(graph, shoal_graph_last(graph), before(b), "node output is the output");
    check_refused(graph, a, before(a), "node a would move next to itself");
    check_refused(graph, a, before(foreign), "node foreign belongs to another graph");
    check_refused(graph, foreign, before(b), "node foreign belongs to another graph");
    CHECK_OK(shoal_node_erase(gone));
    check_refused(graph, gone, before(b), "node gone was erased");
    check_refused(graph, a, before(gone), "node gone was erased");
    CHECK_OK(shoal_node_move_after(x, a));
    CHECK_STATUS(shoal_graph_move_nodes(graph, &b, 1, before(a)), SHOAL_ERR_STATE);
    shoal_graph_free(graph);
    shoal_graph_free(other);
}

static shoal_status move_block(void *context)
{
    shoal_graph *graph = context;
    shoal_node *wait = shoal_graph_find(graph, "wait_tensor");
    shoal_status status = shoal_graph_move_nodes(graph, &wait, 1, before(shoal_graph_last(graph)));
    CHECK(status == SHOAL_OK || shoal_node_next(wait) == shoal_graph_find(graph, "p_1"));
    if (status == SHOAL_OK) {
        status = shoal_node_move_before(wait, shoal_graph_find(graph, "p_1"));
    }
    return status;
}

TEST(without_memory)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *waits[] = {ddp_average(graph, 4), ddp_average(graph, 4)};
    ddp_output(graph, waits, 2);
    CHECK(test_sweep_allocations(move_block, graph) >= 10);
    shoal_graph_free(graph);
}
