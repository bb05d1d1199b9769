/* SPDX-License-Identifier: MIT */
/* How much memory is there at which node, in numbers; order_random_test.c moves nodes. */
#include "graph/analysis/memory.h"

#include "unit/graph/passes/ddp_graph.h"
#include "graph/analysis/range_tree.h"

static void check_profile(const shoal_graph *graph, const uint64_t *expected)
{
    struct effects *effects = NULL;
    struct memory_profile *profile = NULL;
    uint64_t peak = 0;
    REQUIRE_OK(effects_build(graph, &effects));
    REQUIRE_OK(memory_profile_build(graph, effects, &profile));
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        if (memory_profile_at(profile, node) != *expected) {
            test_failed(__FILE__, __LINE__, "%llu bytes at %s, expected %llu",
                        (unsigned long long)memory_profile_at(profile, node), shoal_node_name(node),
                        (unsigned long long)*expected);
        }
        peak = *expected > peak ? *expected : peak;
        expected++;
    }
    CHECK_INT(memory_profile_peak(profile), peak);
    memory_profile_free(profile);
    effects_free(effects);
}

/* 40 bytes each. Inputs are there from the beginning and go with their last use; views and writes take nothing. */
TEST(storages_live_from_first_to_last_use)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 10);
    shoal_node *kept = build_input(graph, "primals_1", 10);
    shoal_node *a = BUILD_CALL(graph, "neg", arg_node(x));
    shoal_node *view = BUILD_CALL(graph, "narrow", arg_node(a), arg_int(0), arg_int(0), arg_int(5));
    shoal_node *b = BUILD_CALL(graph, "neg", arg_node(kept));
    BUILD_CALL(graph, "mul_scalar_", arg_node(b), arg_float(2));
    BUILD_CALL(graph, "neg", arg_node(view)); /* 20 bytes that nobody uses */
    shoal_node *c = BUILD_CALL(graph, "neg", arg_node(b));
    build_output(graph, 1, c);
    check_profile(graph, (uint64_t[]){80, 80, 120, 80, 120, 120, 140, 120, 80});
    shoal_graph_free(graph);
}

/* What is being reduced stays until the wait. */
TEST(collectives_hold_what_they_read)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 10);
    shoal_node *a = BUILD_CALL(graph, "neg", arg_node(x));
    shoal_node *start = build_all_reduce(graph, a);
    shoal_node *b = BUILD_CALL(graph, "neg", arg_node(x));
    shoal_node *wait = build_wait(graph, start);
    shoal_node *c = BUILD_CALL(graph, "neg", arg_node(b));
    build_output(graph, 2, wait, c);
    check_profile(graph, (uint64_t[]){40, 80, 120, 160, 120, 120, 80});
    shoal_graph_free(graph);
}

TEST(an_empty_graph)
{
    shoal_graph *graph = build_graph(0);
    uint64_t peak = 1;
    CHECK_OK(memory_peak(graph, &peak));
    CHECK_INT(peak, 0);
    shoal_graph_free(graph);
}

/* Against an array. */
TEST(ranges)
{
    enum {
        COUNT = 50
    };
    struct test_random random = test_random_begin(0);
    struct range_tree tree;
    uint32_t order[COUNT];
    int64_t values[COUNT] = {0}; /* by item */
    REQUIRE_OK(range_tree_create(&tree, COUNT));
    for (uint32_t i = 0; i < COUNT; i++) {
        order[i] = i;
    }
    for (int round = 0; round < 2000 && !test_has_failed(); round++) {
        size_t from = test_random_below(&random, COUNT);
        size_t to = from + test_random_below(&random, COUNT - from);
        int64_t amount = (int64_t)test_random_below(&random, 21) - 10;
        range_tree_add(&tree, order[from], order[to], amount);
        for (size_t i = from; i <= to; i++) {
            values[order[i]] += amount;
        }
        uint32_t item = order[from];
        if (to > from) { /* before the one behind `to` is as good as any */
            range_tree_move(&tree, item, order[to], amount);
            memmove(&order[from], &order[from + 1], (to - from - 1) * sizeof order[0]);
            order[to - 1] = item;
            values[item] = amount;
        }
        int64_t largest = INT64_MIN;
        uint32_t first = RANGE_TREE_NONE;
        uint32_t last = RANGE_TREE_NONE;
        for (uint32_t i = 0; i < COUNT; i++) {
            CHECK_INT(range_tree_rank(&tree, order[i]), i);
            CHECK_INT(range_tree_value(&tree, order[i]), values[order[i]]);
            largest = values[order[i]] > largest ? values[order[i]] : largest;
            first = values[order[i]] > 10 && first == RANGE_TREE_NONE ? order[i] : first;
            last = values[order[i]] > 10 ? order[i] : last;
        }
        CHECK_INT(range_tree_largest(&tree), largest);
        CHECK_INT(range_tree_find_larger(&tree, 10, true), first);
        CHECK_INT(range_tree_find_larger(&tree, 10, false), last);
    }
    range_tree_free(&tree);
}
