/* SPDX-License-Identifier: MIT */
/* Large graphs, in which a walk over all nodes for each node would be seen, and memory that runs out anywhere. */
#include "graph/ir/observer.h"
#include "unit/graph/building.h"

enum {
    N_NODES = 100000
};

TEST(a_chain_of_many_calls)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *node = x;
    for (int i = 0; i < N_NODES && node; i++) {
        node = make_call(graph, "add", node, x);
    }
    make_output(graph, node);
    CHECK_INT(shoal_graph_n_nodes(graph), N_NODES + 2);
    CHECK_INT(shoal_node_n_users(x), N_NODES);
    shoal_node *y = make_input(graph, "y");
    size_t n_changed;
    CHECK_OK(shoal_node_replace(x, y, NULL, NULL, &n_changed));
    CHECK_INT(n_changed, N_NODES);
    CHECK_USERS(x, "");
    shoal_graph_free(graph);
}

TEST(one_call_of_many_nodes)
{
    shoal_graph *graph = make_graph();
    static shoal_arg items[N_NODES];
    for (int i = 0; i < N_NODES; i++) {
        shoal_node *x = make_input(graph, "x");
        items[i] = node_arg(x);
    }
    shoal_arg list = list_arg(items, N_NODES);
    shoal_node *all = make_opaque(graph, "all", &list, 1);
    CHECK_INT(all->n_inputs, N_NODES);
    for (int i = 0; i < N_NODES; i++) { /* the only user of each, looked for from both sides */
        CHECK(shoal_node_next_user(items[i].as.node, all) == NULL);
    }
    CHECK_OK(shoal_node_set_args(all, &list, 1));
    CHECK_OK(shoal_node_erase(all));
    shoal_graph_free(graph);
}

/* A list of which each element is taken out: the users are many, and their inputs one. */
TEST(many_users_of_one_node)
{
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_arg arg = node_arg(x);
    for (int i = 0; i < N_NODES; i++) {
        make_opaque(graph, "n", &arg, 1);
    }
    size_t n_users = 0;
    for (const shoal_node *user = shoal_node_first_user(x); user; user = shoal_node_next_user(x, user)) {
        n_users++;
    }
    CHECK_INT(n_users, N_NODES);
    shoal_node *next;
    for (shoal_node *node = shoal_graph_last(graph); node; node = next) {
        next = shoal_node_prev(node);
        CHECK_OK(shoal_node_erase(node));
    }
    CHECK_INT(shoal_graph_n_nodes(graph), 0);
    shoal_graph_free(graph);
}

/* What a long list of arguments takes does not grow with the number of nodes in it that are replaced. */
TEST(many_replacements_in_one_list)
{
    enum {
        N_ITEMS = 2000
    };
    shoal_graph *graph = make_graph();
    static shoal_arg items[N_ITEMS];
    for (int i = 0; i < N_ITEMS; i++) {
        items[i] = node_arg(make_input(graph, "x"));
    }
    shoal_arg list = list_arg(items, N_ITEMS);
    shoal_node *output;
    REQUIRE_OK(shoal_graph_output(graph, &list, &output));
    shoal_node *y = make_input(graph, "y");
    size_t before = test_live_blocks();
    for (int i = 0; i < N_ITEMS; i++) {
        CHECK_OK(shoal_node_replace(items[i].as.node, y, NULL, NULL, NULL));
    }
    CHECK_INT(test_live_blocks(), before);
    CHECK_INPUTS(output, "y");
    CHECK_INT(output->args[0].as.list.count, N_ITEMS);
    shoal_graph_free(graph);
}

/* Each call names a group of its own. */
TEST(many_groups)
{
    const int n_groups = (int)(100000 / test_time_scale());
    shoal_graph *graph = make_graph();
    shoal_node *x = make_input(graph, "x");
    shoal_node *node = NULL;
    static shoal_arg items[100000];
    for (int i = 0; i < n_groups; i++) {
        char name[32];
        const int ranks[] = {i, i + 1};
        (void)snprintf(name, sizeof(name), "group_%d", i);
        REQUIRE_OK(shoal_graph_add_group(graph, name, ranks, 1, 2));
        shoal_arg args[] = {node_arg(x),
                            {.kind = SHOAL_ARG_STRING, .as = {.string = "sum"}},
                            {.kind = SHOAL_ARG_GROUP, .as = {.string = name}}};
        REQUIRE_OK(shoal_graph_call(graph, find_op("all_reduce"), args, 3, NULL, &node));
        args[0] = node_arg(node);
        REQUIRE_OK(shoal_graph_call(graph, find_op("wait_tensor"), args, 1, NULL, &node));
        items[i] = node_arg(node);
    }
    shoal_arg list = list_arg(items, (size_t)n_groups);
    REQUIRE_OK(shoal_graph_output(graph, &list, NULL));
    CHECK_OK(shoal_graph_lint(graph));
    const int ranks[] = {5, 6};
    CHECK_OK(shoal_graph_add_group(graph, "group_5", ranks, 1, 2)); /* the same again */
    CHECK_STATUS(shoal_graph_add_group(graph, "group_6", ranks, 1, 2), SHOAL_ERR_INVALID);
    shoal_graph_free(graph);
}

/* Memory ----------------------------------------------------------------------------------------------- */

/* Counts what of a graph a failed call must not change. */
static size_t fingerprint(const shoal_graph *graph)
{
    size_t sum = 17;
    for (const struct shoal_node *node = graph->first; node; node = node->next) {
        sum = sum * 31 + node->id;
        for (size_t i = 0; i < node->n_inputs; i++) {
            sum = sum * 31 + node->inputs[i]->id;
        }
        for (const struct edge *edge = node->first_use; edge; edge = edge->next) {
            sum = sum * 31 + edge->user->id;
        }
        for (size_t i = 0; i < node->n_values; i++) {
            sum = sum * 31 + (size_t)shoal_tensor_count(node->values[i]);
        }
    }
    return sum;
}

/* Of a call that failed: all is as it was. */
static shoal_status check_same(const shoal_graph *graph, size_t before, shoal_status status)
{
    if (status != SHOAL_OK) {
        CHECK(fingerprint(graph) == before);
    }
    return status;
}

/* Stops at the first call that fails. */
static shoal_status edit(shoal_graph *graph)
{
    shoal_node *x;
    shoal_node *y;
    shoal_node *sum;
    shoal_node *view;
    const int64_t shape[] = {4, 4};
    const int64_t longer[] = {8, 4};
    const int ranks[] = {0, 1, 2, 3};
    shoal_status status = shoal_graph_add_group(graph, "all", ranks, 1, 4);
    status = status ? status : shoal_graph_placeholder(graph, "x", shape, 2, SHOAL_F32, &x);
    status = status ? status : shoal_graph_placeholder(graph, "x", longer, 2, SHOAL_F32, &y);
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_arg args[] = {node_arg(x), node_arg(x)};
    shoal_arg list = list_arg(args, 2);
    shoal_arg cut[] = {args[0], int_arg(0), int_arg(1), int_arg(2)};
    size_t before = fingerprint(graph);
    status = check_same(graph, before, shoal_graph_call(graph, find_op("add"), args, 2, NULL, &sum));
    if (status != SHOAL_OK) {
        return status;
    }
    before = fingerprint(graph);
    cut[0] = node_arg(sum);
    status = check_same(graph, before, shoal_graph_call(graph, find_op("narrow"), cut, 4, NULL, &view));
    before = fingerprint(graph);
    status = status ? status : check_same(graph, before, shoal_graph_output(graph, &list, NULL));
    before = fingerprint(graph);
    status = status ? status : check_same(graph, before, shoal_node_replace(x, y, NULL, NULL, NULL));
    before = fingerprint(graph);
    args[1] = node_arg(y);
    args[0] = node_arg(y);
    return status ? status : check_same(graph, before, shoal_node_set_args(sum, args, 2));
}

static shoal_status build_and_edit(void *context)
{
    shoal_graph *graph;
    shoal_status status = shoal_graph_create(&graph);
    if (status != SHOAL_OK) {
        return status;
    }
    struct observer observer = {0};
    status = graph_observer_begin(graph, &observer, "sweep");
    if (status == SHOAL_OK) {
        status = edit(graph);
        graph_observer_end(graph, &observer);
    }
    shoal_graph_free(graph);
    return status;
}

TEST(memory_runs_out)
{
    CHECK(test_sweep_allocations(build_and_edit, NULL) > 10);
}

/* Long lists: each growth of the tables and of the arena fails once. */
static shoal_status build_many(void *context)
{
    shoal_graph *graph;
    shoal_status status = shoal_graph_create(&graph);
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_node *first = NULL;
    for (int i = 0; i < 200 && status == SHOAL_OK; i++) {
        size_t n_nodes = shoal_graph_n_nodes(graph);
        shoal_arg arg = node_arg(first);
        status =
            shoal_graph_opaque(graph, "op", &arg, first ? 1 : 0, NULL, 0, false, NULL, first ? NULL : &first);
        CHECK_INT(shoal_graph_n_nodes(graph), n_nodes + (status == SHOAL_OK));
    }
    shoal_graph_free(graph);
    return status;
}

TEST(memory_runs_out_while_tables_grow)
{
    CHECK(test_sweep_allocations(build_many, NULL) > 5);
}
