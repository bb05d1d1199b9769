/* SPDX-License-Identifier: MIT */
/* Where nodes stand: insertion points, moves, and the numbers that tell which comes first. */
#include "unit/graph/building.h"

static void set_point(shoal_graph *graph, shoal_node *node, bool is_after)
{
    CHECK_OK(shoal_graph_set_insert_point(graph, (shoal_insert_point){.node = node, .is_after = is_after}));
}

static shoal_node *add(shoal_graph *graph, const char *name)
{
    return make_opaque(graph, name, NULL, 0);
}

/* Numbers grow along the list, both ways it is walked. */
static void check_numbers(const shoal_graph *graph)
{
    const struct shoal_node *prev = NULL;
    size_t n_nodes = 0;
    for (const struct shoal_node *node = graph->first; node && !test_has_failed(); node = node->next) {
        CHECK(node->prev == prev);
        CHECK(!prev || prev->order < node->order);
        CHECK(!prev || shoal_node_is_before(prev, node));
        CHECK(!prev || !shoal_node_is_before(node, prev));
        prev = node;
        n_nodes++;
    }
    CHECK(graph->last == prev);
    CHECK_INT(graph->n_nodes, n_nodes);
}

TEST(at_the_end_by_default)
{
    shoal_graph *graph = make_graph();
    CHECK(shoal_graph_insert_point(graph).node == NULL);
    CHECK(shoal_graph_insert_point(graph).is_after);
    add(graph, "a");
    add(graph, "b");
    CHECK_ORDER(graph, "a b");
    CHECK_STRING(shoal_node_name(shoal_graph_first(graph)), "a");
    CHECK_STRING(shoal_node_name(shoal_graph_last(graph)), "b");
    shoal_graph_free(graph);
}

TEST(before_keeps_the_order_and_after_reverses_it)
{
    shoal_graph *graph = make_graph();
    add(graph, "a");
    shoal_node *b = add(graph, "b");
    add(graph, "c");
    set_point(graph, b, false);
    add(graph, "x");
    add(graph, "y");
    CHECK_ORDER(graph, "a x y b c");
    set_point(graph, b, true);
    add(graph, "p");
    add(graph, "q");
    CHECK_ORDER(graph, "a x y b q p c");
    check_numbers(graph);
    shoal_graph_free(graph);
}

TEST(before_the_first_and_behind_the_last)
{
    shoal_graph *graph = make_graph();
    add(graph, "a");
    set_point(graph, NULL, false);
    add(graph, "b");
    add(graph, "c");
    set_point(graph, NULL, true);
    add(graph, "d");
    add(graph, "e");
    CHECK_ORDER(graph, "c b a d e");
    check_numbers(graph);
    shoal_graph_free(graph);
}

TEST(an_erased_node_takes_the_point_along)
{
    shoal_graph *graph = make_graph();
    shoal_node *a = add(graph, "a");
    shoal_node *b = add(graph, "b");
    shoal_node *c = add(graph, "c");
    set_point(graph, b, false);
    CHECK_OK(shoal_node_erase(b));
    CHECK(shoal_graph_insert_point(graph).node == c && !shoal_graph_insert_point(graph).is_after);
    add(graph, "x");
    add(graph, "y");
    CHECK_ORDER(graph, "a x y c");
    CHECK_OK(shoal_node_erase(c)); /* before the last: behind what is the last then */
    add(graph, "z");
    add(graph, "w");
    CHECK_ORDER(graph, "a x y z w");
    set_point(graph, shoal_graph_find(graph, "x"), true);
    CHECK_OK(shoal_node_erase(shoal_graph_find(graph, "x")));
    CHECK(shoal_graph_insert_point(graph).node == a && shoal_graph_insert_point(graph).is_after);
    CHECK_OK(shoal_node_erase(a)); /* behind the first: before what is the first then */
    add(graph, "v");
    CHECK_ORDER(graph, "v y z w");
    shoal_graph_free(graph);
}

TEST(the_point_of_an_empty_graph)
{
    shoal_graph *graph = make_graph();
    shoal_node *a = add(graph, "a");
    set_point(graph, a, false);
    CHECK_OK(shoal_node_erase(a));
    CHECK_INT(shoal_graph_n_nodes(graph), 0);
    CHECK(shoal_graph_first(graph) == NULL && shoal_graph_last(graph) == NULL);
    add(graph, "b");
    add(graph, "c");
    CHECK_ORDER(graph, "b c");
    shoal_graph_free(graph);
}

TEST(points_that_are_refused)
{
    shoal_graph *graph = make_graph();
    shoal_graph *other = make_graph();
    shoal_node *a = add(graph, "a");
    shoal_node *b = add(graph, "b");
    CHECK_STATUS(shoal_graph_set_insert_point(other, (shoal_insert_point){a, true}), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node a belongs to another graph");
    CHECK_OK(shoal_node_erase(b));
    CHECK_STATUS(shoal_graph_set_insert_point(graph, (shoal_insert_point){b, true}), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node b was erased");
    CHECK_STATUS(shoal_graph_set_insert_point(NULL, (shoal_insert_point){NULL, true}), SHOAL_ERR_INVALID);
    shoal_graph_free(other);
    shoal_graph_free(graph);
}

TEST(moves)
{
    shoal_graph *graph = make_graph();
    shoal_node *a = add(graph, "a");
    shoal_node *b = add(graph, "b");
    shoal_node *c = add(graph, "c");
    CHECK_OK(shoal_node_move_before(c, a));
    CHECK_ORDER(graph, "c a b");
    CHECK_OK(shoal_node_move_after(c, b));
    CHECK_ORDER(graph, "a b c");
    CHECK_OK(shoal_node_move_before(b, c)); /* where it is */
    CHECK_OK(shoal_node_move_after(b, a));
    CHECK_OK(shoal_node_move_before(b, b));
    CHECK_OK(shoal_node_move_after(b, b));
    CHECK_ORDER(graph, "a b c");
    CHECK_INT(shoal_graph_n_nodes(graph), 3);
    check_numbers(graph);
    shoal_graph_free(graph);
}

TEST(moves_that_are_refused)
{
    shoal_graph *graph = make_graph();
    shoal_graph *other = make_graph();
    shoal_node *a = add(graph, "a");
    shoal_node *b = add(graph, "b");
    shoal_node *x = add(other, "x");
    CHECK_STATUS(shoal_node_move_before(a, x), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nodes a and x belong to different graphs");
    CHECK_STATUS(shoal_node_move_after(a, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("where is NULL");
    CHECK_STATUS(shoal_node_move_after(NULL, a), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_node_erase(b));
    CHECK_STATUS(shoal_node_move_after(a, b), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_node_move_after(b, a), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node b was erased");
    CHECK_ORDER(graph, "a");
    CHECK(!shoal_node_is_before(a, x) && !shoal_node_is_before(x, a) && !shoal_node_is_before(a, NULL));
    shoal_graph_free(other);
    shoal_graph_free(graph);
}

/* A walk that erases where it stands goes on. */
TEST(a_walk_that_erases)
{
    shoal_graph *graph = make_graph();
    shoal_node *nodes[6];
    for (int i = 0; i < 6; i++) {
        nodes[i] = add(graph, "n");
    }
    shoal_node *node = shoal_graph_first(graph);
    for (int i = 0; node; node = shoal_node_next(node), i++) {
        if (i % 2 == 0) {
            CHECK_OK(shoal_node_erase(node));
        }
    }
    CHECK_ORDER(graph, "n_1 n_3 n_5");
    CHECK_OK(shoal_node_erase(nodes[3]));
    CHECK(shoal_node_next(nodes[2]) == nodes[5]); /* past one that went later */
    CHECK(shoal_node_prev(nodes[4]) == nodes[1]);
    shoal_graph_free(graph);
}

/* Numbers run out at one place: between two nodes, at either end. */
TEST(many_insertions_at_one_place)
{
    enum {
        N_NODES = 30000
    };
    for (int place = 0; place < 4; place++) {
        shoal_graph *graph = make_graph();
        add(graph, "a");
        shoal_node *b = add(graph, "b");
        set_point(graph, place < 2 ? b : NULL, place % 2 != 0);
        for (int i = 0; i < N_NODES; i++) {
            add(graph, "x");
        }
        check_numbers(graph);
        CHECK_INT(shoal_graph_n_nodes(graph), N_NODES + 2);
        shoal_graph_free(graph);
    }
}

/* The last node to the front, again and again, and anywhere. */
TEST(many_moves)
{
    enum {
        N_NODES = 300,
        N_MOVES = 30000
    };
    struct test_random random = test_random_begin(1);
    shoal_graph *graph = make_graph();
    shoal_node *nodes[N_NODES];
    for (int i = 0; i < N_NODES; i++) {
        nodes[i] = add(graph, "x");
    }
    for (int i = 0; i < N_MOVES; i++) {
        CHECK_OK(shoal_node_move_before(shoal_graph_last(graph), shoal_graph_first(graph)));
    }
    check_numbers(graph);
    for (int i = 0; i < N_MOVES; i++) {
        shoal_node *node = nodes[test_random_below(&random, N_NODES)];
        shoal_node *where = nodes[test_random_below(&random, 10)];
        CHECK_OK(i % 2 ? shoal_node_move_before(node, where) : shoal_node_move_after(node, where));
    }
    check_numbers(graph);
    CHECK_INT(shoal_graph_n_nodes(graph), N_NODES);
    shoal_graph_free(graph);
}
