/* SPDX-License-Identifier: MIT */
/* Names of nodes: unique, legal, with the smallest free number; found again. */
#include "unit/graph/building.h"

/* The name that a node gets who wishes for `wish`. */
static const char *named(shoal_graph *graph, const char *wish)
{
    return shoal_node_name(make_opaque(graph, wish, NULL, 0));
}

TEST(a_taken_name_gets_the_smallest_free_number)
{
    shoal_graph *graph = make_graph();
    CHECK_STRING(named(graph, "add"), "add");
    CHECK_STRING(named(graph, "add"), "add_1");
    CHECK_STRING(named(graph, "add"), "add_2");
    CHECK_STRING(named(graph, "mul"), "mul");
    CHECK_STRING(named(graph, "mul"), "mul_1");
    shoal_graph_free(graph);
}

TEST(a_number_behind_the_name_is_a_number)
{
    shoal_graph *graph = make_graph();
    CHECK_STRING(named(graph, "x_3"), "x_3"); /* as wished: it is free */
    CHECK_STRING(named(graph, "x"), "x");
    CHECK_STRING(named(graph, "x"), "x_1");
    CHECK_STRING(named(graph, "x_1"), "x_2");
    CHECK_STRING(named(graph, "x_3"), "x_4"); /* not x_3_1 */
    CHECK_STRING(named(graph, "x"), "x_5");
    CHECK_STRING(named(graph, "x_007"), "x_007");
    CHECK_STRING(named(graph, "x_007"), "x_6");
    CHECK_STRING(named(graph, "x_99999999999999999999999"), "x_99999999999999999999999");
    CHECK_STRING(named(graph, "x_99999999999999999999999"), "x_7");
    shoal_graph_free(graph);
}

/* Nodes that were counted are found, and so are those between them that somebody named. */
TEST(counted_names_are_found)
{
    enum {
        N_NODES = 3000
    };
    shoal_graph *graph = make_graph();
    char name[32];
    CHECK_STRING(named(graph, "x_17"), "x_17");
    for (int i = 0; i < N_NODES; i++) {
        (void)named(graph, i == 100 ? "x_2000" : i == 200 ? "x_150" : "x");
    }
    for (uint32_t number = 1; number <= N_NODES; number++) {
        (void)snprintf(name, sizeof name, "x_%u", number);
        CHECK_STRING(shoal_node_name(shoal_graph_find(graph, name)), name);
    }
    CHECK_STRING(shoal_node_name(shoal_graph_find(graph, "x")), "x");
    CHECK(!shoal_graph_find(graph, "x_0"));
    CHECK(!shoal_graph_find(graph, "x_017"));
    CHECK(!shoal_graph_find(graph, "x_3001"));
    CHECK(!shoal_graph_find(graph, "y_1"));
    CHECK(!shoal_graph_find(graph, "x_1_1"));
    CHECK(!shoal_graph_find(graph, "x_4294967297"));
    CHECK_STRING(named(graph, "x_1999"), "x_3001"); /* as x: it was counted */
    shoal_graph_free(graph);
}

/* add_1_2 counts on add_1, which does not make that a name to count on. */
TEST(numbers_behind_numbers)
{
    shoal_graph *graph = make_graph();
    CHECK_STRING(named(graph, "add"), "add");
    CHECK_STRING(named(graph, "add_1"), "add_1");
    CHECK_STRING(named(graph, "add_1_2"), "add_1_2");
    CHECK_STRING(named(graph, "add_1_2"), "add_1_1");
    CHECK_STRING(named(graph, "add_1"), "add_2");
    CHECK_STRING(named(graph, "add_1_1"), "add_1_3");
    shoal_graph_free(graph);
}

/* A new name depends on the names that there are, not on how they came: a graph that was written and read goes on alike. */
TEST(names_do_not_depend_on_the_past)
{
    static const char *const wishes[] = {"a",     "a_1", "a_1_1", "a_1_2", "a_2",
                                         "a_2_1", "b",   "b_1",   "_1",    "a_"};
    enum {
        N_WISHES = sizeof wishes / sizeof wishes[0],
        N_NODES = 12
    };
    struct test_random random = test_random_begin(0);
    for (int round = 0; round < 300 && !test_has_failed(); round++) {
        shoal_graph *graph = make_graph();
        for (int i = 0; i < N_NODES; i++) {
            const char *wish = wishes[test_random_below(&random, N_WISHES)];
            shoal_graph *again = make_graph();
            for (shoal_node *node = shoal_graph_last(graph); node; node = shoal_node_prev(node)) {
                CHECK_STRING(named(again, shoal_node_name(node)), shoal_node_name(node));
            }
            CHECK_STRING(named(again, wish), named(graph, wish));
            shoal_graph_free(again);
        }
        shoal_graph_free(graph);
    }
}

TEST(a_number_without_a_name_is_none)
{
    shoal_graph *graph = make_graph();
    CHECK_STRING(named(graph, "_5"), "_5");
    CHECK_STRING(named(graph, "_5"), "_5_1");
    CHECK_STRING(named(graph, "a5"), "a5");
    CHECK_STRING(named(graph, "a5"), "a5_1");
    CHECK_STRING(named(graph, "add_"), "add_");
    CHECK_STRING(named(graph, "add_"), "add__1");
    shoal_graph_free(graph);
}

TEST(other_characters_become_underscores)
{
    shoal_graph *graph = make_graph();
    CHECK_STRING(named(graph, "layers.0.weight"), "layers.0.weight");
    CHECK_STRING(named(graph, "layers.0.weight"), "layers.0.weight_1");
    CHECK_STRING(named(graph, "layers_0_weight"), "layers_0_weight");
    CHECK_STRING(named(graph, ".x"), "_x");
    CHECK_STRING(named(graph, "0.x"), "_0.x");
    CHECK_STRING(named(graph, "0"), "_0");
    CHECK_STRING(named(graph, "7x"), "_7x");
    CHECK_STRING(named(graph, ""), "_");
    CHECK_STRING(named(graph, ""), "__1");
    CHECK_STRING(named(graph, "%@ "), "___");
    CHECK_STRING(named(graph, "\xc3\xa4"), "__"); /* a letter of two bytes */
    shoal_graph_free(graph);
}

TEST(names_without_a_wish)
{
    shoal_graph *graph = make_graph();
    shoal_node *x;
    REQUIRE_OK(shoal_graph_placeholder(graph, NULL, NULL, 0, SHOAL_F32, &x));
    CHECK_STRING(shoal_node_name(x), "placeholder");
    CHECK_STRING(shoal_node_target(x), "placeholder");
    CHECK_STRING(named(graph, NULL), "something");
    CHECK_STRING(named(graph, NULL), "something_1");
    shoal_graph_free(graph);
}

TEST(nodes_are_found_by_name)
{
    shoal_graph *graph = make_graph();
    shoal_node *a = make_opaque(graph, "a", NULL, 0);
    shoal_node *b = make_opaque(graph, "a", NULL, 0);
    CHECK(shoal_graph_find(graph, "a") == a);
    CHECK(shoal_graph_find(graph, "a_1") == b);
    CHECK(shoal_graph_find(graph, "a_2") == NULL);
    CHECK(shoal_graph_find(graph, NULL) == NULL);
    CHECK(shoal_graph_find(NULL, "a") == NULL);
    shoal_graph_free(graph);
}

TEST(the_name_of_an_erased_node_stays_taken)
{
    shoal_graph *graph = make_graph();
    shoal_node *a = make_opaque(graph, "a", NULL, 0);
    REQUIRE_OK(shoal_node_erase(a));
    CHECK(shoal_graph_find(graph, "a") == NULL);
    CHECK_STRING(named(graph, "a"), "a_1");
    shoal_graph_free(graph);
}

/* Calls without a wish are named after their op, which is known by its address once it is counted on. */
TEST(calls_count_on_around_names_that_are_taken)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    (void)named(graph, "neg_2");
    (void)named(graph, "neg_99");
    (void)named(graph, "neg_0");
    char expected[32];
    int number = 0;
    for (int i = 0; i < 1100; i++) {
        shoal_node *node = make_call(graph, "neg", x, NULL);
        if (i == 50) { /* more bases: the table of them grows */
            for (int k = 0; k < 300; k++) {
                (void)snprintf(expected, sizeof(expected), "b%d", k);
                (void)named(graph, expected);
                (void)named(graph, expected);
            }
        }
        (void)snprintf(expected, sizeof(expected), "neg_%d", number);
        expected[i == 0 ? 3 : strlen(expected)] = '\0';
        CHECK_STRING(shoal_node_name(node), expected);
        CHECK(shoal_graph_find(graph, expected) == node);
        number += number + 1 == 2 || number + 1 == 99 ? 2 : 1;
    }
    shoal_graph_free(graph);
}

TEST(many_of_one_name)
{
    enum {
        N_NODES = 100000
    };
    shoal_graph *graph = make_graph();
    char expected[32];
    for (int i = 0; i < N_NODES && !test_has_failed(); i++) {
        shoal_node *node = make_opaque(graph, i % 2 ? "x" : "x_1", NULL, 0);
        if (i >= 2) {
            (void)snprintf(expected, sizeof(expected), "x_%d", i);
            CHECK_STRING(shoal_node_name(node), expected);
        }
    }
    CHECK_INT(shoal_graph_n_nodes(graph), N_NODES);
    (void)snprintf(expected, sizeof(expected), "x_%d", N_NODES / 2);
    CHECK_STRING(shoal_node_name(shoal_graph_find(graph, expected)), expected);
    shoal_graph_free(graph);
}
