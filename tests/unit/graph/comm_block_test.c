/* SPDX-License-Identifier: MIT */
#include "ddp_graph.h"

static void check_refused(shoal_node *start, const char *words)
{
    shoal_comm_block block = SHOAL_COMM_BLOCK_INIT;
    CHECK_STATUS(shoal_comm_block_get(start, &block), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(words);
    CHECK(block.memory == NULL);
    shoal_comm_block_free(&block);
}

TEST(start_and_wait)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    shoal_node *start = build_all_reduce(graph, x);
    shoal_node *wait = build_wait(graph, start);
    build_output(graph, 1, wait);
    shoal_comm_block block = SHOAL_COMM_BLOCK_INIT;
    REQUIRE_OK(shoal_comm_block_get(start, &block));
    CHECK(block.start == start);
    CHECK(block.n_inputs == 1 && block.inputs[0] == x);
    CHECK(block.n_waits == 1 && block.waits[0] == wait);
    CHECK(block.n_nodes == 2 && block.nodes[0] == start && block.nodes[1] == wait);
    CHECK(block.n_outputs == 1 && block.outputs[0] == wait);
    shoal_comm_block_free(&block);
    CHECK(block.memory == NULL);
    shoal_comm_block_free(&block);
    shoal_comm_block_free(NULL);
    shoal_graph_free(graph);
}

/* By op, not by name; and a user that is none of them hides nothing. */
TEST(all_that_looks_at_it)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    shoal_node *start = build_all_reduce(graph, x);
    shoal_node *wait = build_wait(graph, start);
    shoal_node *user = build_named(graph, "split_like", "neg", (shoal_arg[]){arg_node(wait)}, 1);
    shoal_arg shape[] = {arg_node(wait), ARG_LIST(arg_int(2), arg_int(3))};
    shoal_node *view = build_named(graph, "thing", "reshape", shape, 2);
    shoal_node *deep =
        build_named(graph, "deep", "transpose", (shoal_arg[]){arg_node(view), arg_int(0), arg_int(1)}, 3);
    build_output(graph, 2, user, deep);
    shoal_comm_block block = SHOAL_COMM_BLOCK_INIT;
    REQUIRE_OK(shoal_comm_block_get(start, &block));
    CHECK_INT(block.n_nodes, 4);
    CHECK(block.nodes[2] == view && block.nodes[3] == deep);
    CHECK(block.n_outputs == 2 && block.outputs[0] == wait && block.outputs[1] == deep);
    shoal_comm_block_free(&block);
    shoal_graph_free(graph);
}

TEST(lists)
{
    for (size_t n = 1; n <= 3; n++) {
        shoal_graph *graph = build_graph(2);
        shoal_node *inputs[3];
        shoal_node *waits[3];
        for (size_t i = 0; i < n; i++) {
            inputs[i] = build_input(graph, "x", 6);
        }
        shoal_node *start = build_all_reduce_coalesced(graph, inputs, n);
        for (size_t i = 0; i < n; i++) {
            waits[i] = build_wait(graph, build_getitem(graph, start, (int64_t)i));
        }
        ddp_output(graph, waits, n);
        shoal_comm_block block = SHOAL_COMM_BLOCK_INIT;
        REQUIRE_OK(shoal_comm_block_get(start, &block));
        CHECK_INT(block.n_waits, n);
        CHECK_INT(block.n_nodes, 1 + 2 * n);
        CHECK_INT(block.n_outputs, n);
        CHECK(block.waits[0] == waits[0]);
        for (size_t i = 1; i < block.n_nodes; i++) {
            CHECK(shoal_node_is_before(block.nodes[i - 1], block.nodes[i]));
        }
        shoal_comm_block_free(&block);
        shoal_graph_free(graph);
    }
}

TEST(d27_d28_what_is_no_block)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    check_refused(x, "x does not start communication");
    shoal_node *lonely = build_all_reduce(graph, x);
    check_refused(lonely, "nobody uses all_reduce");
    shoal_node *seen = build_all_reduce(graph, x);
    BUILD_CALL(graph, "neg", arg_node(seen));
    check_refused(seen, "all_reduce_1 has 1 users, the first of which is neg, instead of one wait");
    shoal_node *list = build_all_reduce_coalesced(graph, &x, 1);
    shoal_node *item = build_getitem(graph, list, 0);
    check_refused(list, "nobody uses getitem");
    build_wait(graph, item);
    shoal_node *again = BUILD_CALL(graph, "neg", arg_node(item));
    check_refused(list, "getitem has 2 users");
    CHECK_OK(shoal_node_erase(again));
    check_refused(again, "is erased");
    shoal_comm_block block = SHOAL_COMM_BLOCK_INIT;
    REQUIRE_OK(shoal_comm_block_get(list, &block));
    shoal_comm_block_free(&block);
    check_refused(NULL, "start is NULL");
    CHECK_STATUS(shoal_comm_block_get(list, NULL), SHOAL_ERR_INVALID);
    block = (shoal_comm_block){.struct_size = 8};
    CHECK_STATUS(shoal_comm_block_get(list, &block), SHOAL_ERR_INVALID);
    shoal_graph_free(graph);
}

static shoal_status get_block(void *context)
{
    shoal_comm_block block = SHOAL_COMM_BLOCK_INIT;
    shoal_status status = shoal_comm_block_get(context, &block);
    shoal_comm_block_free(&block);
    return status;
}

TEST(without_memory)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 64);
    shoal_node *start = build_all_reduce(graph, x);
    shoal_node *wait = build_wait(graph, start);
    shoal_node *split = BUILD_CALL(graph, "split", arg_node(wait), arg_int(1));
    shoal_node *items[64];
    for (int64_t i = 0; i < 64; i++) {
        items[i] = build_getitem(graph, split, i);
    }
    ddp_output(graph, items, 64);
    CHECK(test_sweep_allocations(get_block, start) >= 3);
    shoal_graph_free(graph);
}
