/* SPDX-License-Identifier: MIT */
#include "unit/graph/passes/ddp_graph.h"

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
    check_refused(lonely, "all_reduce has no users");
    shoal_node *seen = build_all_reduce(graph, x);
    BUILD_CALL(graph, "neg", arg_node(seen));
    check_refused(seen, "all_reduce_1 has 1 users, the first of which is neg, instead of one wait");
    shoal_node *list = build_all_reduce_coalesced(graph, &x, 1);
    shoal_node *item = build_getitem(graph, list, 0);
    check_refused(list, "getitem has no users");
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

/* All blocks of a graph ------------------------------------------------------------------------------------- */

struct blocks {
    shoal_comm_block **list;
    size_t count;
};

static struct blocks get_all(const shoal_graph *graph, const shoal_op *const *ops, size_t n_ops,
                             shoal_comm_block_filter filter, void *context)
{
    struct blocks blocks = {.list = NULL};
    (void)CHECK_OK(shoal_comm_blocks_get(graph, ops, n_ops, filter, context, &blocks.list, &blocks.count));
    return blocks;
}

static bool starts_with_x(void *context, const shoal_comm_block *block)
{
    ++*(size_t *)context;
    return block->n_inputs == 1 && strcmp(shoal_node_name(block->inputs[0]), "x") == 0;
}

TEST(all_blocks_in_order)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    shoal_node *y = build_input(graph, "y", 6);
    shoal_node *second = build_all_reduce(graph, x);
    shoal_node *lonely = build_all_reduce(graph, x);
    shoal_node *first = build_all_reduce(graph, y);
    shoal_node *list = build_all_reduce_coalesced(graph, &x, 1);
    shoal_node *waits[] = {build_wait(graph, first), build_wait(graph, second),
                           build_wait(graph, build_getitem(graph, list, 0))};
    ddp_output(graph, waits, 3);
    CHECK_OK(shoal_node_move_before(first, second));
    (void)lonely; /* is no block */
    const shoal_op *ops[] = {shoal_node_op(first), shoal_node_op(list)};

    struct blocks all = get_all(graph, NULL, 0, NULL, NULL);
    REQUIRE(all.count == 3);
    CHECK(all.list[0]->start == first && all.list[1]->start == second && all.list[2]->start == list);
    CHECK(all.list[1]->n_outputs == 1 && all.list[1]->outputs[0] == waits[1]);
    CHECK_INT(all.list[2]->struct_size, sizeof(shoal_comm_block));
    shoal_comm_blocks_free(all.list, all.count);

    struct blocks reduces = get_all(graph, ops, 1, NULL, NULL);
    CHECK_INT(reduces.count, 2);
    shoal_comm_blocks_free(reduces.list, reduces.count);

    size_t n_asked = 0;
    struct blocks filtered = get_all(graph, ops, 2, starts_with_x, &n_asked);
    CHECK_INT(n_asked, 3);
    REQUIRE(filtered.count == 2);
    CHECK(filtered.list[0]->start == second && filtered.list[1]->start == list);
    shoal_comm_blocks_free(filtered.list, filtered.count);

    struct blocks none = get_all(graph, ops + 1, 0, NULL, NULL);
    CHECK(none.count == 0 && none.list == NULL);
    shoal_comm_blocks_free(none.list, none.count);
    shoal_graph_free(graph);
}

TEST(blocks_that_are_refused)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    build_output(graph, 1, build_wait(graph, build_all_reduce(graph, x)));
    shoal_comm_block **list = NULL;
    size_t count = 7;
    const shoal_op *ops[] = {NULL, NULL};
    CHECK_STATUS(shoal_comm_blocks_get(NULL, NULL, 0, NULL, NULL, &list, &count), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("graph is NULL");
    CHECK_STATUS(shoal_comm_blocks_get(graph, NULL, 0, NULL, NULL, NULL, &count), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("blocks_out is NULL");
    CHECK_STATUS(shoal_comm_blocks_get(graph, NULL, 0, NULL, NULL, &list, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("n_blocks_out is NULL");
    CHECK_STATUS(shoal_comm_blocks_get(graph, NULL, 2, NULL, NULL, &list, &count), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("ops is NULL, but n_ops is 2");
    CHECK_STATUS(shoal_comm_blocks_get(graph, ops, 2, NULL, NULL, &list, &count), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("ops[0] is NULL");
    CHECK_OK(shoal_op_find("neg", &ops[0]));
    CHECK_STATUS(shoal_comm_blocks_get(graph, ops, 1, NULL, NULL, &list, &count), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("ops[0], neg, does not start communication");
    CHECK(list == NULL && count == 7);
    shoal_graph_free(graph);
}

static shoal_status get_and_free(void *context)
{
    shoal_comm_block **list;
    size_t count;
    shoal_status status = shoal_comm_blocks_get(context, NULL, 0, NULL, NULL, &list, &count);
    if (status == SHOAL_OK) {
        shoal_comm_blocks_free(list, count);
    }
    return status;
}

TEST(all_blocks_without_memory)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *waits[5];
    for (size_t i = 0; i < 5; i++) {
        waits[i] = ddp_average(graph, 4);
    }
    ddp_output(graph, waits, 5);
    size_t n_live = test_live_blocks();
    CHECK(test_sweep_allocations(get_and_free, graph) >= 15);
    CHECK_INT(test_live_blocks(), n_live);
    shoal_graph_free(graph);
}
