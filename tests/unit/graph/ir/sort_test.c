/* SPDX-License-Identifier: MIT */
/* shoal_graph_sort, and the variants of graph/ir/sort.h. Lists are put out of order in their structs. */
#include <stdlib.h>
#include <string.h>

#include "fixtures/graph_build.h"
#include "graph/ir/graph.h"
#include "graph/ir/sort.h"
#include "harness/test.h"
#include "shoal/graph.h"

/* Links the nodes in this order. Orders stay those of the places. */
static void relink(shoal_graph *graph, shoal_node *const *nodes, size_t n_nodes)
{
    uint64_t *orders = calloc(n_nodes, sizeof *orders);
    size_t n = 0;
    REQUIRE(orders);
    for (const shoal_node *node = graph->first; node && n < n_nodes; node = node->next) {
        orders[n++] = node->order;
    }
    CHECK_INT(n, graph->n_nodes);
    for (size_t i = 0; i < n_nodes && nodes[i]; i++) {
        nodes[i]->prev = i > 0 ? nodes[i - 1] : NULL;
        nodes[i]->next = i + 1 < n_nodes ? nodes[i + 1] : NULL;
        nodes[i]->order = orders[i];
    }
    graph->first = nodes[0];
    graph->last = nodes[n_nodes - 1];
    free(orders);
}

/* The same by names: relink_names(graph, "b a output"). */
static void relink_names(shoal_graph *graph, const char *names)
{
    shoal_node *nodes[32];
    size_t n_nodes = 0;
    while (*names && n_nodes < 32) {
        char name[64];
        size_t length = strcspn(names, " ");
        REQUIRE(length < sizeof name);
        memcpy(name, names, length);
        name[length] = '\0';
        nodes[n_nodes] = shoal_graph_find(graph, name);
        REQUIRE(nodes[n_nodes]);
        n_nodes++;
        names += length + (names[length] == ' ');
    }
    relink(graph, nodes, n_nodes);
}

/* x, then a(x), b(a), c(b, a), d(x), output(c, d). */
struct small {
    shoal_graph *graph;
    shoal_node *x;
    shoal_node *a;
    shoal_node *b;
    shoal_node *c;
    shoal_node *d;
    shoal_node *output;
};

static bool small_build(struct small *s)
{
    *s = (struct small){.graph = build_graph(0)};
    s->x = build_input(s->graph, "x", 2);
    s->a = build_opaque(s->graph, "a", (shoal_node *[]){s->x}, 1);
    s->b = build_opaque(s->graph, "b", (shoal_node *[]){s->a}, 1);
    s->c = build_opaque(s->graph, "c", (shoal_node *[]){s->b, s->a}, 2);
    s->d = build_opaque(s->graph, "d", (shoal_node *[]){s->x}, 1);
    s->output = build_output(s->graph, 2, s->c, s->d);
    if (!s->output) {
        shoal_graph_free(s->graph);
    }
    return s->output != NULL;
}

static void check_sorted(int line, shoal_graph *graph, const char *before, const char *after)
{
    relink_names(graph, before);
    if (test_check_status(__FILE__, line, "shoal_graph_sort", shoal_graph_sort(graph), SHOAL_OK)) {
        build_check_nodes(__FILE__, line, graph, after);
        (void)test_check_status(__FILE__, line, "shoal_graph_lint", shoal_graph_lint(graph), SHOAL_OK);
    }
}

TEST(null_and_an_empty_graph)
{
    CHECK_STATUS(shoal_graph_sort(NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("graph_sort: graph is NULL");
    shoal_graph *graph = build_graph(0);
    CHECK_OK(shoal_graph_sort(graph));
    CHECK_INT(shoal_graph_n_nodes(graph), 0);
    shoal_graph_free(graph);
}

TEST(a_graph_in_order_stays_as_it_is)
{
    struct small s;
    REQUIRE(small_build(&s));
    check_sorted(__LINE__, s.graph, "x a b c d output", "x a b c d output");
    check_sorted(__LINE__, s.graph, "x d a b c output", "x d a b c output");
    check_sorted(__LINE__, s.graph, "x a d b c output", "x a d b c output");
    shoal_graph_free(s.graph);
}

/* Worked out by hand. */
TEST(what_is_parked_follows_what_it_waits_for)
{
    struct small s;
    REQUIRE(small_build(&s));
    check_sorted(__LINE__, s.graph, "b x a c d output", "x a b c d output");
    /* c is parked at a, its last input, and then at b; b at a, behind c. */
    check_sorted(__LINE__, s.graph, "c b x d a output", "x d a b c output");
    check_sorted(__LINE__, s.graph, "d c b a x output", "x d a b c output");
    check_sorted(__LINE__, s.graph, "c x a d b output", "x a d b c output");
    /* a and d are parked at x, a first; c at a; then b is still to come. */
    check_sorted(__LINE__, s.graph, "a d c x b output", "x a d b c output");
    shoal_graph_free(s.graph);
}

TEST(the_output_goes_last)
{
    struct small s;
    REQUIRE(small_build(&s));
    check_sorted(__LINE__, s.graph, "output d c b a x", "x d a b c output");
    check_sorted(__LINE__, s.graph, "x a b output c d", "x a b c d output");
    shoal_graph_free(s.graph);
}

TEST(the_insertion_point_stays_at_its_node)
{
    struct small s;
    REQUIRE(small_build(&s));
    REQUIRE_OK(shoal_graph_set_insert_point(s.graph, (shoal_insert_point){s.b, true}));
    check_sorted(__LINE__, s.graph, "b x a c d output", "x a b c d output");
    shoal_insert_point point = shoal_graph_insert_point(s.graph);
    CHECK(point.node == s.b && point.is_after);
    CHECK(build_opaque(s.graph, "new", &s.a, 1) != NULL);
    CHECK_NODES(s.graph, "x a b new c d output");
    CHECK_OK(shoal_graph_lint(s.graph));
    shoal_graph_free(s.graph);
}

TEST(a_cycle_is_an_error_and_changes_nothing)
{
    struct small s;
    REQUIRE(small_build(&s));
    relink_names(s.graph, "c d b x a output");
    s.a->inputs[0] = s.b;
    CHECK_STATUS(shoal_graph_sort(s.graph), SHOAL_ERR_INVALID);
    /* c is not in it: it only needs what is. */
    CHECK_ERROR_TEXT("is in a cycle: it needs");
    CHECK(strstr(shoal_error_text(), "node c ") == NULL);
    CHECK_NODES(s.graph, "c d b x a output");
    s.a->inputs[0] = s.a;
    CHECK_STATUS(shoal_graph_sort(s.graph), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("graph_sort: node a is in a cycle: it needs itself");
    CHECK_NODES(s.graph, "c d b x a output");
    s.a->inputs[0] = s.output;
    CHECK_STATUS(shoal_graph_sort(s.graph), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("is in a cycle");
    CHECK_NODES(s.graph, "c d b x a output");
    s.a->inputs[0] = s.x;
    CHECK_OK(shoal_graph_sort(s.graph));
    CHECK_OK(shoal_graph_lint(s.graph));
    shoal_graph_free(s.graph);
}

TEST(a_node_that_needs_the_output)
{
    shoal_graph *graph = build_graph(0);
    shoal_node *x = build_input(graph, "x", 2);
    shoal_node *a = build_opaque(graph, "a", &x, 1);
    shoal_node *output = build_output(graph, 1, x);
    REQUIRE(a && output);
    a->inputs[0] = output;
    CHECK_STATUS(shoal_graph_sort(graph), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("graph_sort: node a must come after output, the output");
    a->inputs[0] = x;
    CHECK_NODES(graph, "x a output");
    shoal_graph_free(graph);
}

/* Extra predecessors and regions ------------------------------------------------------------------------ */

/* before[i] stands before behind[i]. */
struct extra {
    shoal_node *behind;
    shoal_node *before[2];
    size_t n_before;
};

static size_t get_extra(void *context, const struct shoal_node *node, struct shoal_node *const **nodes_out)
{
    const struct extra *extra = context;
    *nodes_out = extra->before;
    return node == extra->behind ? extra->n_before : 0;
}

TEST(extra_predecessors_count_like_inputs)
{
    struct small s;
    REQUIRE(small_build(&s));
    struct extra extra = {.behind = s.a, .before = {s.d}, .n_before = 1};
    CHECK_OK(graph_sort_with(s.graph, get_extra, &extra));
    CHECK_NODES(s.graph, "x d a b c output");
    CHECK_OK(graph_sort_with(s.graph, get_extra, &extra));
    CHECK_NODES(s.graph, "x d a b c output");
    CHECK_OK(graph_sort_with(s.graph, NULL, NULL));
    CHECK_NODES(s.graph, "x d a b c output");
    extra = (struct extra){.behind = s.d, .before = {s.b, s.c}, .n_before = 2};
    CHECK_OK(graph_sort_with(s.graph, get_extra, &extra));
    CHECK_NODES(s.graph, "x a b c d output");
    CHECK_OK(shoal_graph_lint(s.graph));
    shoal_graph_free(s.graph);
}

TEST(extra_predecessors_can_make_a_cycle)
{
    struct small s;
    REQUIRE(small_build(&s));
    struct extra extra = {.behind = s.a, .before = {s.c}, .n_before = 1};
    CHECK_STATUS(graph_sort_with(s.graph, get_extra, &extra), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("is in a cycle");
    CHECK_NODES(s.graph, "x a b c d output");
    shoal_graph_free(s.graph);
}

TEST(a_region_is_sorted_alone)
{
    struct small s;
    REQUIRE(small_build(&s));
    relink_names(s.graph, "b c x a d output");
    CHECK_OK(graph_sort_region(s.b, s.c, NULL, NULL));
    CHECK_NODES(s.graph, "b c x a d output");
    relink_names(s.graph, "c b x d a output");
    CHECK_OK(graph_sort_region(s.c, s.b, NULL, NULL));
    CHECK_NODES(s.graph, "b c x d a output");
    relink_names(s.graph, "x c b a d output");
    CHECK_OK(graph_sort_region(s.c, s.a, NULL, NULL));
    CHECK_NODES(s.graph, "x a b c d output");
    CHECK_OK(shoal_graph_lint(s.graph));
    CHECK_OK(graph_sort_region(s.a, s.a, NULL, NULL));
    CHECK_OK(graph_sort_region(s.x, s.output, NULL, NULL));
    CHECK_NODES(s.graph, "x a b c d output");
    CHECK_STATUS(graph_sort_region(s.c, s.a, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("node a is not after node c");
    shoal_graph_free(s.graph);
}

/* Random graphs ----------------------------------------------------------------------------------------- */

/* The same sort, written as the description reads: lists that are searched. */
struct model {
    shoal_node *pending[128]; /* the next one last */
    size_t n_pending;
    shoal_node *parked[128]; /* in the order of parking */
    shoal_node *parked_at[128];
    size_t n_parked;
    shoal_node *placed[128];
    size_t n_placed;
};

static bool model_has_placed(const struct model *m, const shoal_node *node)
{
    for (size_t i = 0; i < m->n_placed; i++) {
        if (m->placed[i] == node) {
            return true;
        }
    }
    return false;
}

static void model_place(struct model *m, shoal_node *node)
{
    m->placed[m->n_placed++] = node;
    size_t n_kept = 0;
    shoal_node *woken[128];
    size_t n_woken = 0;
    for (size_t i = 0; i < m->n_parked; i++) {
        if (m->parked_at[i] == node) {
            woken[n_woken++] = m->parked[i];
        } else {
            m->parked[n_kept] = m->parked[i];
            m->parked_at[n_kept++] = m->parked_at[i];
        }
    }
    m->n_parked = n_kept;
    while (n_woken > 0) {
        m->pending[m->n_pending++] = woken[--n_woken];
    }
}

static void model_sort(struct model *m, shoal_node *const *nodes, size_t n_nodes)
{
    *m = (struct model){.n_pending = 0};
    shoal_node *output = NULL;
    for (size_t i = n_nodes; i > 0; i--) {
        m->pending[m->n_pending++] = nodes[i - 1];
    }
    while (m->n_pending > 0) {
        shoal_node *node = m->pending[--m->n_pending];
        if (node->kind == SHOAL_NODE_OUTPUT) {
            output = node;
            continue;
        }
        shoal_node *missing = NULL;
        for (size_t i = 0; i < node->n_inputs; i++) {
            missing = model_has_placed(m, node->inputs[i]) ? missing : node->inputs[i];
        }
        if (missing) {
            m->parked[m->n_parked] = node;
            m->parked_at[m->n_parked++] = missing;
        } else {
            model_place(m, node);
        }
    }
    m->placed[m->n_placed++] = output;
}

static void shuffle(struct test_random *random, shoal_node **nodes, size_t n_nodes)
{
    for (size_t i = n_nodes; i > 1; i--) {
        size_t j = (size_t)test_random_below(random, i);
        shoal_node *node = nodes[i - 1];
        nodes[i - 1] = nodes[j];
        nodes[j] = node;
    }
}

static size_t random_graph(struct test_random *random, shoal_graph *graph, shoal_node **nodes, size_t n_nodes)
{
    size_t n = 0;
    nodes[n++] = build_input(graph, "x", 1);
    while (n + 1 < n_nodes && nodes[n - 1]) {
        shoal_node *inputs[5];
        size_t n_inputs = 1 + (size_t)test_random_below(random, 5);
        for (size_t i = 0; i < n_inputs; i++) {
            /* Mostly near ones, so that there are chains. */
            size_t back = 1 + (size_t)test_random_below(random, i % 2 == 0 && n > 6 ? 6 : n);
            inputs[i] = nodes[n - back];
        }
        nodes[n] = build_opaque(graph, "node", inputs, n_inputs);
        n++;
    }
    nodes[n] = build_output(graph, 1, nodes[n - 1]);
    return nodes[n] ? n + 1 : 0;
}

TEST(random_graphs_sort_as_described)
{
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < 200 && !test_has_failed(); round++) {
        shoal_node *nodes[100] = {NULL};
        struct model model;
        shoal_graph *graph = build_graph(0);
        size_t n_nodes = random_graph(&random, graph, nodes, 3 + (size_t)test_random_below(&random, 97));
        REQUIRE(n_nodes > 0);
        CHECK_OK(shoal_graph_sort(graph));
        size_t n_same = 0;
        for (shoal_node *node = graph->first; node; node = node->next) {
            n_same += node == nodes[n_same];
        }
        CHECK_INT(n_same, n_nodes);
        shuffle(&random, nodes, n_nodes);
        relink(graph, nodes, n_nodes);
        model_sort(&model, nodes, n_nodes);
        for (int again = 0; again < 2; again++) {
            CHECK_OK(shoal_graph_sort(graph));
            CHECK_OK(shoal_graph_lint(graph));
            size_t i = 0;
            for (shoal_node *node = graph->first; node && i < model.n_placed; node = node->next) {
                CHECK(node == model.placed[i++]);
            }
            CHECK_INT(i, n_nodes);
        }
        shoal_graph_free(graph);
    }
}

enum {
    N_LARGE = 100000
};

/* A chain in which each uses the first too, and one node that uses them all. */
static bool large_build(shoal_graph *graph, shoal_node **nodes)
{
    nodes[0] = build_input(graph, "x", 1);
    for (size_t i = 1; i + 2 < N_LARGE && !test_has_failed(); i++) {
        nodes[i] = build_opaque(graph, "node", (shoal_node *[]){nodes[i - 1], nodes[0]}, 2);
    }
    nodes[N_LARGE - 2] = build_opaque(graph, "all", nodes, N_LARGE - 2);
    nodes[N_LARGE - 1] = build_output(graph, 1, nodes[N_LARGE - 2]);
    return nodes[N_LARGE - 1] != NULL;
}

/* Neither a node that is parked many times nor a long chain of parked nodes makes it quadratic. */
TEST(a_large_graph)
{
    struct test_random random = test_random_begin(2);
    shoal_graph *graph = build_graph(0);
    shoal_node **nodes = calloc(N_LARGE, sizeof(shoal_node *));
    shoal_node **others = calloc(N_LARGE, sizeof(shoal_node *));
    if (nodes && others && large_build(graph, nodes)) {
        CHECK_OK(shoal_graph_sort(graph));
        CHECK(graph->first == nodes[0] && graph->last == nodes[N_LARGE - 1]);
        for (size_t i = 0; i < N_LARGE; i++) {
            others[i] = nodes[N_LARGE - 1 - i];
        }
        relink(graph, others, N_LARGE);
        CHECK_OK(shoal_graph_sort(graph));
        CHECK_OK(shoal_graph_lint(graph));
        shuffle(&random, others, N_LARGE);
        relink(graph, others, N_LARGE);
        CHECK_OK(shoal_graph_sort(graph));
        CHECK_OK(shoal_graph_lint(graph));
    } else {
        test_failed(__FILE__, __LINE__, "the graph was not built");
    }
    free(others);
    free(nodes);
    shoal_graph_free(graph);
}

/* All inputs of one node behind it, the last one first: it is parked at each of them. */
TEST(a_node_that_is_parked_at_each_of_its_inputs)
{
    shoal_graph *graph = build_graph(0);
    shoal_node **nodes = calloc(N_LARGE, sizeof(shoal_node *));
    shoal_node **others = calloc(N_LARGE, sizeof(shoal_node *));
    for (size_t i = 0; i + 2 < N_LARGE && nodes && others && !test_has_failed(); i++) {
        nodes[i] = build_input(graph, "x", 1);
        others[N_LARGE - 1 - i] = nodes[i];
    }
    shoal_node *all = nodes && others ? build_opaque(graph, "all", nodes, N_LARGE - 2) : NULL;
    shoal_node *output = build_output(graph, 1, all);
    if (nodes && others && output) {
        others[0] = all;
        others[1] = output;
        relink(graph, others, N_LARGE);
        CHECK_OK(shoal_graph_sort(graph));
        CHECK_OK(shoal_graph_lint(graph));
        CHECK(graph->first == nodes[N_LARGE - 3] && graph->last->prev == all);
    }
    free(others);
    free(nodes);
    shoal_graph_free(graph);
}

/* Memory that runs out ---------------------------------------------------------------------------------- */

static shoal_status sort_once(void *context)
{
    struct small *s = context;
    relink_names(s->graph, "c b x d a output");
    shoal_status status = shoal_graph_sort(s->graph);
    CHECK_NODES(s->graph, status == SHOAL_OK ? "x d a b c output" : "c b x d a output");
    return status;
}

TEST(sort_survives_failing_allocations)
{
    struct small s;
    REQUIRE(small_build(&s));
    CHECK_INT(test_sweep_allocations(sort_once, &s), 2);
    CHECK_OK(shoal_graph_lint(s.graph));
    shoal_graph_free(s.graph);
}
