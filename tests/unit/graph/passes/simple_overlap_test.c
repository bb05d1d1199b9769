/* SPDX-License-Identifier: MIT */
#include "ddp_graph.h"
#include "graph/analysis/memory.h"
#include "shoal/op.h"

static void run(shoal_graph *graph)
{
    const char *pass = "simple_overlap";
    uint64_t before = 0;
    uint64_t after = 0;
    CHECK_OK(memory_peak(graph, &before));
    CHECK_OK(shoal_graph_run_passes(graph, &pass, 1, NULL, NULL));
    CHECK_OK(memory_peak(graph, &after));
    CHECK(after <= before);
}

static shoal_node *build_neg(shoal_graph *graph, shoal_node *x)
{
    return BUILD_CALL(graph, "neg", arg_node(x));
}

/* So much memory for a moment that nothing behind it matters. */
static shoal_node *build_peak(shoal_graph *graph)
{
    return BUILD_CALL(graph, "zeros", ARG_LIST(arg_int(100000)), arg_dtype(SHOAL_F32));
}

TEST(starts_rise_and_waits_sink)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *y = build_input(graph, "y", 4);
    build_peak(graph);
    shoal_node *a = build_neg(graph, x);
    shoal_node *b = build_neg(graph, a);
    shoal_node *first = build_wait(graph, build_all_reduce(graph, y));
    shoal_node *second = build_wait(graph, build_all_reduce(graph, a));
    shoal_node *c = build_neg(graph, b);
    shoal_node *sum = BUILD_CALL(graph, "add", arg_node(first), arg_node(second));
    build_output(graph, 2, sum, c);
    run(graph);
    CHECK_NODES(graph,
                "x y zeros all_reduce neg all_reduce_1 neg_1 neg_2 wait_tensor wait_tensor_1 add output");
    shoal_graph_free(graph);
}

/* The result of the start would be there while the large tensor is. */
TEST(memory_keeps_starts_back)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 400);
    shoal_node *large = build_neg(graph, build_neg(graph, x));
    shoal_node *small = BUILD_CALL(graph, "narrow", arg_node(large), arg_int(0), arg_int(0), arg_int(4));
    shoal_node *a = build_neg(graph, small);
    shoal_node *wait = build_wait(graph, build_all_reduce(graph, x));
    build_output(graph, 2, wait, a);
    run(graph);
    CHECK_NODES(graph, "x neg neg_1 narrow neg_2 all_reduce wait_tensor output");
    shoal_graph_free(graph);
}

/* It goes as far as memory allows. */
TEST(moves_end_where_memory_does)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *a = build_neg(graph, x);
    shoal_node *wait = build_wait(graph, build_all_reduce(graph, a));
    shoal_node *b = build_neg(graph, x);
    build_peak(graph);
    shoal_node *c = build_neg(graph, b);
    shoal_node *second = build_wait(graph, build_all_reduce(graph, b));
    build_output(graph, 3, wait, c, second);
    run(graph);
    CHECK_NODES(graph, "x neg all_reduce neg_1 wait_tensor zeros all_reduce_1 neg_2 wait_tensor_1 output");
    shoal_graph_free(graph);
}

/* What is being reduced is kept until the wait. */
TEST(memory_keeps_waits_back)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "primals_1", 400);
    shoal_node *wait = build_wait(graph, build_all_reduce(graph, build_neg(graph, x)));
    shoal_node *other = build_neg(graph, x);
    build_output(graph, 2, wait, other);
    run(graph);
    CHECK_NODES(graph, "primals_1 neg all_reduce wait_tensor neg_1 output");
    shoal_graph_free(graph);
}

TEST(groups_keep_their_order)
{
    shoal_graph *graph = build_graph(2);
    CHECK_OK(shoal_graph_add_group(graph, "other", (int[]){0, 1}, 1, 2));
    shoal_node *x = build_input(graph, "x", 4);
    build_peak(graph);
    shoal_node *a = build_neg(graph, x);
    shoal_node *first = build_all_reduce(graph, a);
    shoal_node *second = build_all_reduce(graph, x);
    shoal_node *third = BUILD_CALL(graph, "all_reduce", arg_node(x), arg_string("sum"), arg_group("other"));
    shoal_node *wait = build_wait(graph, first);
    shoal_node *wait2 = build_wait(graph, second);
    shoal_node *wait3 = build_wait(graph, third);
    shoal_node *early = build_neg(graph, wait2); /* the first wait stays before the second */
    build_output(graph, 4, wait, wait3, early, build_neg(graph, x));
    run(graph);
    CHECK_NODES(graph,
                "x zeros all_reduce_2 neg all_reduce all_reduce_1 wait_tensor wait_tensor_1 neg_1 neg_2 "
                "wait_tensor_2 output");
    shoal_graph_free(graph);
}

TEST(views_of_results_go_along)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 6);
    build_peak(graph);
    shoal_node *wait = build_wait(graph, build_all_reduce(graph, x));
    shoal_node *split = BUILD_CALL(graph, "split", arg_node(wait), arg_int(3));
    shoal_node *item = build_getitem(graph, split, 1);
    shoal_node *shaped = BUILD_CALL(graph, "reshape", arg_node(item), ARG_LIST(arg_int(3), arg_int(1)));
    shoal_node *other = build_neg(graph, x);
    build_output(graph, 2, other, shaped);
    run(graph);
    CHECK_NODES(graph, "x zeros all_reduce neg wait_tensor split getitem reshape output");
    shoal_graph_free(graph);
}

static shoal_status no_kernel(shoal_op_call_context *call, const shoal_value *arguments,
                              shoal_tensor *const *outputs, size_t n_outputs)
{
    (void)call;
    (void)arguments;
    (void)outputs;
    (void)n_outputs;
    return SHOAL_OK;
}

static shoal_status like_self(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

/* Sends, receives, and what may be a barrier are not overtaken, and overtake nothing. */
TEST(every_communication_counts)
{
    shoal_op_definition definition = SHOAL_OP_DEFINITION_INIT;
    definition.name = "test.overlap_barrier";
    definition.signature = "tensor self -> tensor";
    definition.flags = SHOAL_OP_SIDE_EFFECT;
    definition.meta = like_self;
    definition.kernel = no_kernel;
    definition.doc = "May be a barrier.";
    size_t n_blocks = test_live_blocks();
    CHECK_OK(shoal_op_register(&definition, NULL));
    test_keep_blocks(test_live_blocks() - n_blocks);
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *y = build_input(graph, "y", 4);
    build_peak(graph);
    shoal_node *a = build_neg(graph, x);
    shoal_node *send = build_wait(
        graph, BUILD_CALL(graph, "isend", arg_node(a), arg_int(1), arg_int(0), arg_group(BUILD_GROUP)));
    shoal_node *receive = build_wait(
        graph, BUILD_CALL(graph, "irecv", arg_node(y), arg_int(1), arg_int(0), arg_group(BUILD_GROUP)));
    shoal_node *b = build_neg(graph, a);
    shoal_node *barrier =
        build_named(graph, "barrier", "test.overlap_barrier", (shoal_arg[]){arg_node(b)}, 1);
    shoal_node *sum = build_wait(graph, build_all_reduce(graph, x));
    shoal_node *c = build_neg(graph, b);
    build_output(graph, 5, send, receive, barrier, sum, c);
    run(graph);
    CHECK_NODES(graph, "x y zeros neg isend irecv neg_1 barrier all_reduce neg_2 wait_tensor wait_tensor_1 "
                       "wait_tensor_2 output");
    const char *raise = "raise_comms";
    CHECK_OK(shoal_graph_run_passes(graph, &raise, 1, NULL, NULL));
    CHECK_NODES(graph, "x y neg isend irecv neg_1 barrier all_reduce zeros neg_2 wait_tensor wait_tensor_1 "
                       "wait_tensor_2 output");
    shoal_graph_free(graph);
}
